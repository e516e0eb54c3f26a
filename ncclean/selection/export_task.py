"""What the tasks of an export share: options, what is chosen of a shard, and the report."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ncclean import stores
from ncclean.atomic import published
from ncclean.data.arrow_values import python_values
from ncclean.data.kept_captions import KeptCaptions
from ncclean.data.samples import CaptionKeys
from ncclean.selection.export_plan import ExportTask, Segment, copies_of, open_selection
from ncclean.selection.out_layout import TARS, OutLayout, Targets
from ncclean.storage.catalog import columns_of, connect
from ncclean.storage.quoting import identifier


@dataclass(frozen=True)
class ExportOptions:
    """Options that every task of an export shares. Paths may be URLs.

    `scores` and `columns`: score files and the columns to add to each sample's json. `repeats`
    is the factor of the weights that says how often a sample is written; None is once.
    `caption_key` are the names of the captions, where the selection tells several apart. `fixes`
    are decisions of `ncclean explain`.
    """

    selection: str
    out: str
    digits: int = 5
    scores: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    repeats: float | None = None
    caption_key: CaptionKeys = None
    layout: OutLayout = TARS
    fixes: str | None = None

    @property
    def targets(self) -> Targets:
        """Paths of the export's files."""
        return Targets(self.layout, stores.location(self.out), self.digits)

    def absolute(self) -> ExportOptions:
        """The options with absolute paths, for a worker whose working folder is another one."""
        return replace(
            self,
            selection=stores.absolute(self.selection),
            out=stores.absolute(self.out),
            scores=tuple(map(stores.absolute, self.scores)),
            fixes=None if self.fixes is None else stores.absolute(self.fixes),
        )


@dataclass
class ShardReport:
    """The outcome of a task; `missing` keys were selected but are not in the input.

    `further_images` counts pictures beside those of the samples, for which the layout has no place.

    `columns` are those of its rows where they go to a text, `schema` that of its Parquet file, in
    base64 of Arrow's form.
    """

    number: int
    samples: int = 0
    bytes: int = 0
    further_images: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    columns: list[str] = field(default_factory=list)
    schema: str | None = None


@dataclass(frozen=True)
class Chosen:
    """Selected samples of an input shard: key to copies and to the fields to add to each caption.

    `fields` are by key and number of the caption, the best first. `captions` is None where the
    samples have but one, which stays.
    """

    copies: dict[str, int]
    fields: Mapping[str, Mapping[int, dict[str, Any]]]
    captions: KeptCaptions | None

    def fields_of(self, key: str, numbers: Container[int] | None = None) -> dict[str, Any]:
        """The fields to add to a sample: those of the best caption, or of the best of `numbers`."""
        fields = self.fields.get(key, {})
        if numbers is None or len(fields) < 2:
            return next(iter(fields.values()), {})
        return next((added for number, added in fields.items() if number in numbers), {})

    def renamed(self, rename: Callable[[str], str]) -> Chosen:
        """The same under other keys, for a shard that has the right captions."""
        return Chosen(
            {rename(key): copies for key, copies in self.copies.items()},
            {rename(key): fields for key, fields in self.fields.items()},
            None,
        )


def finish_task(
    task: ExportTask, options: ExportOptions, report: ShardReport, begin: float
) -> None:
    """Publish the statistics of a task that began at a time; its files are there."""
    report.seconds = time.time() - begin
    with published(options.targets.stats(task.number)) as aside:
        aside.write_text(json.dumps(_stats(task, report, begin), indent=2) + "\n")


def _stats(task: ExportTask, report: ShardReport, begin: float) -> dict[str, Any]:
    """The fields of img2dataset's `_stats.json`, and where the samples came from."""
    return {
        "count": task.samples,
        "successes": report.samples,
        "failed_to_download": sum(report.missing.values()),
        "failed_to_resize": 0,
        "duration": round(report.seconds, 3),
        "start_time": begin,
        "end_time": begin + report.seconds,
        "status_dict": {"success": report.samples},
        "bytes": report.bytes,
        "missing": report.missing,
        "errors": report.errors,
        "sources": {segment.name: segment.count for segment in task.segments},
        **({"further_images": report.further_images} if report.further_images else {}),
        **({"columns": report.columns} if report.columns else {}),
        **({"schema": report.schema} if report.schema else {}),
    }


ReadChosen = Callable[[Segment], Chosen]


@contextlib.contextmanager
def open_chosen(options: ExportOptions) -> Iterator[ReadChosen]:
    """Open the selection and the scores of an export, once for all input shards of a task.

    Yields a function that reads what the selection has of a shard, with the columns to add.
    """
    with contextlib.ExitStack() as stack:
        opened = open_selection(options.selection, options.fixes)
        selection = stack.enter_context(contextlib.closing(opened))
        scores = None
        if options.columns:
            scores = stack.enter_context(contextlib.closing(connect(options.scores)))
        yield lambda segment: _chosen_of(segment, options, selection, scores)


def _chosen_of(
    segment: Segment,
    options: ExportOptions,
    selection: duckdb.DuckDBPyConnection,
    scores: duckdb.DuckDBPyConnection | None,
) -> Chosen:
    rows = selection.execute(
        "SELECT key, uid, weight, captions, mended FROM scores WHERE shard = ?", [segment.name]
    ).fetchall()
    keys = [str(key) for key, *_ in rows]
    captions = {str(key): several for key, _, _, several, _ in rows if several is not None}
    mended = {
        str(key): {
            number: text
            for number, text in zip(several or (0,), texts, strict=True)
            if text is not None
        }
        for key, _, _, several, texts in rows
        if any(text is not None for text in texts)
    }
    numbers = {key: list(dict.fromkeys(several)) for key, several in captions.items()}
    if options.repeats is None:
        copies = dict(Counter(keys))
        copies |= {key: several.count(several[0]) for key, several in captions.items()}
    else:
        uids, weights = [row[1] for row in rows], [row[2] for row in rows]
        times = copies_of(uids, weights, options.repeats)
        copies = Counter[str]()
        for key, number in zip(keys, times, strict=True):
            copies[key] += int(number)
        copies = +copies
    return Chosen(
        copies,
        _score_fields(segment.name, options, numbers, scores) if scores is not None else {},
        KeptCaptions(numbers, mended, options.caption_key) if numbers or mended else None,
    )


def _score_fields(
    shard: str,
    options: ExportOptions,
    captions: Mapping[str, Sequence[int]],
    connection: duckdb.DuckDBPyConnection,
) -> dict[str, dict[int, dict[str, Any]]]:
    """The columns of the captions of each sample, which are those of `captions` if it is there."""
    number = "caption_number" if "caption_number" in columns_of(connection, "scores") else "0"
    names = ", ".join(map(identifier, options.columns))
    # As Arrow, whose values need no packages that DuckDB asks for, such as for times of a zone.
    table: pa.Table = connection.sql(
        f"SELECT key, {number}, {names} FROM scores WHERE shard = ? ORDER BY row DESC",
        params=[shard],
    ).to_arrow_table()  # the first row of a key that occurs twice wins
    columns = [
        [_plain(column.type, value) for value in python_values(column)] for column in table.columns
    ]
    fields: dict[str, dict[int, dict[str, Any]]] = {}
    for key, caption, *values in zip(*columns, strict=True):
        added = dict(zip(options.columns, values, strict=True))
        if key in captions:
            fields.setdefault(key, {number: {} for number in captions[key]})
            if caption in fields[key]:
                fields[key][caption] = added
        else:
            fields[key] = {caption: added}
    return fields


def set_aside(record: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a sample that added fields of the same names replace, as `original_...`.

    Those that an earlier export set aside stay.
    """
    replaced = {name: record[name] for name, value in fields.items()
                if record.get(name) not in (None, value)}  # fmt: skip
    originals = {f"original_{name}": value for name, value in replaced.items()}
    return {name: value for name, value in originals.items() if name not in record}


def copy_key(key: str, copy: int) -> str:
    """Copies have keys of their own: webdataset joins neighbours that share one."""
    return f"{key}_copy{copy}" if copy else key


def free_key(key: str, taken: dict[str, int]) -> str:
    """The key, with a number behind it if it is `taken`, which it is from then on.

    Input shards may each count from 0; loaders join neighbours that share a key. `taken` has the
    next number to try of each key: trying all again would be quadratic where one key is everywhere.
    """
    free = key
    while free in taken:
        free = f"{key}_{taken[key]}"
        taken[key] += 1
    taken[free] = 2
    return free


def _plain(kind: pa.DataType, value: Any) -> Any:
    """A value as a json has it; numbers of 32 bits in their shortest decimal form."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(str(np.float32(value))) if pa.types.is_float32(kind) else value
    if isinstance(value, dict):
        return {name: _plain(kind.field(name).type, inner) for name, inner in value.items()}
    if isinstance(value, list) and not pa.types.is_map(kind):
        return [_plain(kind.value_type, inner) for inner in value]
    return value
