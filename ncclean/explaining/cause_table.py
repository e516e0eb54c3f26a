"""Causes, and the Parquet table of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import __version__
from ncclean.base.atomic import published
from ncclean.base.estimates import Estimate, flattened
from ncclean.base.output_mark import mark
from ncclean.base.schema import CAUSES
from ncclean.base.small_tables import read_parquet
from ncclean.errors import InputError, one_line
from ncclean.storage.catalog import columns_of
from ncclean.storage.joined import SCORES_ALONE

COMMAND = "explain"
_NUMBERS = ("excess", "q_value")


@dataclass(frozen=True)
class Example:
    """A probably wrong pair of a cause."""

    uid: str | None
    shard: str
    key: str | None
    row: int
    caption_number: int
    caption: str | None
    probability: float


@dataclass(frozen=True)
class Cause:
    """A group of pairs that are wrong more often than others: a row of the table of causes.

    `number` counts causes from 1, the largest excess first. After them come groups of which
    `is_cause` is false: the estimator may only be worse there, so that `excess` and `q_value` are
    NaN. Last come groups folded into one of these, with its number in `folded_into`. `rate` is the
    share of wrong pairs, `outside` that of the pairs in no listed group, unknown for exchanged
    words in a table without near misses. `excess` is the number of wrong pairs beyond that rate, or
    of all wrong pairs if it is unknown. `condition` is SQL over the score table; `join` is the
    table that it needs, as for `--join`.
    """

    number: int
    folded_into: int | None
    is_cause: bool
    kind: str
    value: str
    label: str
    outcome: str
    pairs: int
    rate: Estimate
    outside: Estimate
    excess: float
    q_value: float
    condition: str
    join: str | None = None
    proposal: str | None = None
    examples: tuple[Example, ...] = field(default=())

    @property
    def is_rate_known(self) -> bool:
        """Whether anything is known about the group's share of wrong pairs, if only a bound."""
        return self.rate.is_known or self.rate.low > 0 or self.rate.high < 1

    def to_json(self) -> dict[str, Any]:
        """Return the cause as a row of the table, with null for NaN."""
        row = {name: getattr(self, name) for name in CAUSES.names if hasattr(self, name)}
        row |= flattened([("rate", self.rate), ("outside", self.outside)])
        row |= {name: None for name in _NUMBERS if math.isnan(row[name])}
        row["examples"] = [vars(example) for example in self.examples]
        return row


def write_causes(out: UPath, causes: Sequence[Cause], metadata: dict[str, str]) -> None:
    """Write a table of causes to a Parquet file, whole or not at all."""
    facts = {"made_by": mark(COMMAND), "ncclean_version": __version__, **metadata}
    table = pa.Table.from_pylist([cause.to_json() for cause in causes], CAUSES)
    with published(out) as aside:
        pq.write_table(table.replace_schema_metadata(facts), aside, compression="zstd")


def read_causes(path: str) -> list[Cause]:
    """Read a table of causes. Raises `InputError` for anything else."""
    table = read_parquet(path, CAUSES.names, what="causes of `ncclean explain`")
    try:
        rows = table.select(CAUSES.names).cast(CAUSES).to_pylist()
    except (ValueError, NotImplementedError) as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
    return [_cause(row, path) for row in rows]


def check_examples(
    causes: Sequence[Cause], connection: duckdb.DuckDBPyConnection, path: str
) -> None:
    """Raise `InputError` if the causes are of another score table: it has none of their examples.

    The connection is that of `ncclean.storage.joined.JoinedScores`; the causes are those of `path`.
    """
    uids = [example.uid for cause in causes for example in cause.examples if example.uid]
    query = f"SELECT 1 FROM {SCORES_ALONE} WHERE uid IN (SELECT unnest($1)) LIMIT 1"
    has_uids = "uid" in columns_of(connection, SCORES_ALONE)
    if uids and not (has_uids and connection.execute(query, [uids]).fetchall()):
        raise InputError(f"{path} is about another table: none of its examples is in this one")


def _cause(row: dict[str, Any], path: str) -> Cause:
    rate, outside = (Estimate.of_fields(row, name) for name in ("rate", "outside"))
    for name in ("rate", "outside"):
        for end in ("", "_low", "_high"):
            row.pop(name + end)
    row |= {name: math.nan for name in _NUMBERS if row[name] is None}
    for name in ("number", "is_cause", "kind", "value", "label", "outcome", "pairs", "condition"):
        if row[name] is None:
            raise InputError(f"{path}: a cause lacks {name}")
    examples = tuple(Example(**one) for one in row.pop("examples") or () if one is not None)
    return Cause(rate=rate, outside=outside, examples=examples, **row)
