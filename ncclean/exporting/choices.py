"""Choose what a selection takes from a shard: samples, captions, and columns to add."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ncclean.data.arrow_values import python_values
from ncclean.data.member_samples import uid_among
from ncclean.data.samples import Sample
from ncclean.exporting.plan import PLACE, Segment, copies_of, open_selection
from ncclean.storage.catalog import columns_of, connect
from ncclean.storage.quoting import identifier


@dataclass(slots=True)
class Choice:
    """The choice of a selection about a sample: how often, which captions, and added columns.

    `numbers` are those of its captions, the best first; None if the sample has only one. `mended`
    are the texts that replace captions, and `fields` the columns to add, by caption number. `place`
    is offset and size of the sample in its tar, if the selection has them, and `image_size` the
    scored image's.
    """

    copies: int = 0
    numbers: list[int] | None = None
    mended: dict[int, str] = field(default_factory=dict)
    fields: dict[int, dict[str, Any]] = field(default_factory=dict)
    place: tuple[int, int] | None = None
    image_size: int | None = None

    @property
    def changes_captions(self) -> bool:
        """Whether the sample is exported with other captions."""
        return self.numbers is not None or bool(self.mended)

    @property
    def is_changed(self) -> bool:
        """Whether the sample is exported with other captions or further fields."""
        return self.changes_captions or any(self.fields.values())

    def fields_of(self, numbers: Container[int] | None = None) -> dict[str, Any]:
        """Return the fields to add to a sample: those of the best of its exported captions."""
        if numbers is None or len(self.fields) < 2:
            return next(iter(self.fields.values()), {})
        return next((added for number, added in self.fields.items() if number in numbers), {})


Choices = dict[str, dict[str, Choice]]  # by key, then by uid


def choice_of(choices: Choices, sample: Sample, shard: str) -> Choice | None:
    """Return the choice for a sample of a shard, under its name in the selection."""
    of_key = choices.get(sample.key)
    if of_key is None:
        return None
    uid = uid_among(of_key, sample.metadata, shard, sample.key)
    return None if uid is None else of_key[uid]


@contextlib.contextmanager
def open_choices(
    selection: str,
    fixes: str | None,
    repeats: float | None,
    scores: Sequence[str],
    columns: Sequence[str],
) -> Iterator[Callable[[Segment], Choices]]:
    """Open a selection and the scores to add, once for all input shards of a task.

    Yields a function that reads the choices for a shard.
    """
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(contextlib.closing(open_selection(selection, fixes)))
        table = stack.enter_context(contextlib.closing(connect(scores))) if columns else None

        def read(segment: Segment) -> Choices:
            choices = _choices(opened, segment.name, repeats)
            if table is not None:
                _add_fields(choices, table, segment.name, columns)
            return choices

        yield read


def _choices(selection: duckdb.DuckDBPyConnection, shard: str, repeats: float | None) -> Choices:
    columns = columns_of(selection, "scores")
    places = ", ".join(name if name in columns else "NULL" for name in PLACE)
    rows = selection.execute(
        f"SELECT key, uid, weight, captions, mended, {places} FROM scores WHERE shard = ?", [shard]
    ).fetchall()
    if repeats is None:
        times = [1 if row[3] is None else row[3].count(row[3][0]) for row in rows]
    else:
        times = copies_of([row[1] for row in rows], [row[2] for row in rows], repeats).tolist()
    choices: Choices = {}
    for (key, uid, _, captions, mended, *place), count in zip(rows, times, strict=True):
        if not count:
            continue
        choice = choices.setdefault(str(key), {}).setdefault(uid, Choice())
        choice.copies += count
        if captions is not None:
            choice.numbers = list(dict.fromkeys(captions))
        for number, text in zip(captions or (0,), mended, strict=True):
            if text is not None:
                choice.mended[number] = text
        offset, size, choice.image_size = place
        choice.place = None if offset is None or size is None else (offset, size)
    return choices


def _add_fields(
    choices: Choices, scores: duckdb.DuckDBPyConnection, shard: str, columns: Sequence[str]
) -> None:
    """Put the columns of the chosen captions of each sample into its choice."""
    existing = columns_of(scores, "scores")
    number = "caption_number" if "caption_number" in existing else "0"
    uid = "uid" if "uid" in existing else "NULL"
    names = ", ".join(map(identifier, columns))
    # As Arrow, whose values do not need the packages that DuckDB uses, such as for time zones.
    table: pa.Table = scores.sql(
        f"SELECT key, {uid}, {number}, {names} FROM scores WHERE shard = ? ORDER BY row DESC",
        params=[shard],
    ).to_arrow_table()  # the first row of a repeated key wins
    values = [[_plain(one.type, value) for value in python_values(one)] for one in table.columns]
    for key, of, caption, *added in zip(*values, strict=True):
        for one, choice in choices.get(key, {}).items():
            if of not in (None, one):
                continue
            if choice.numbers is None:
                choice.fields = {caption: dict(zip(columns, added, strict=True))}
                continue
            choice.fields = choice.fields or {number: {} for number in choice.numbers}
            if caption in choice.fields:
                choice.fields[caption] = dict(zip(columns, added, strict=True))


def _plain(kind: pa.DataType, value: Any) -> Any:
    """Convert a value for json; 32-bit numbers get their shortest decimal form."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(str(np.float32(value))) if pa.types.is_float32(kind) else value
    if isinstance(value, dict):
        return {name: _plain(kind.field(name).type, inner) for name, inner in value.items()}
    if isinstance(value, list) and not pa.types.is_map(kind):
        return [_plain(kind.value_type, inner) for inner in value]
    return value


def added_types(scores: Sequence[str], columns: Sequence[str]) -> Mapping[str, pa.DataType]:
    """Return the types of the columns that an export adds."""
    if not columns:
        return {}
    with contextlib.closing(connect(scores)) as connection:
        names = ", ".join(map(identifier, columns))
        table: Any = connection.sql(f"SELECT {names} FROM scores LIMIT 0").to_arrow_table()
        return {field.name: field.type for field in table.schema}
