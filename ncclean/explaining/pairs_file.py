"""The scored pairs of a table in a file of their own, with the values that groups are compared by.

A piece of evidence becomes a value in [0, 1] too: the mean probability of the pairs with a like
number, in 64 bins of as many pairs. Its mean over a group is that of the probability itself, unless
the group's scores are low for a reason that the evidence is blind to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import duckdb

from ncclean.explaining.kinds import DERIVED, length_class
from ncclean.explaining.outcomes import Evidence, Outcome
from ncclean.storage.quoting import identifier

_BINS = 64
_KEPT = ("shard", "key", "row", "caption_number", "uid", "text", "url", "width", "height",
         "caption_key", "language", "similarity", "suspect_word", "better_word")  # fmt: skip


@dataclass(frozen=True)
class Required:
    """Values that must be higher in a group: `columns` are their places, the outcome's own first.

    Each shows at least the share `least` of what wrong pairs would make it show.
    """

    columns: tuple[int, ...]
    least: tuple[float, ...]


@dataclass(frozen=True)
class Values:
    """Columns of the pairs: `v0`, `v1`, ... are the outcomes', `v0_NAME` the evidence beside."""

    outcomes: tuple[Outcome, ...]

    def names(self) -> list[str]:
        """List the value columns: of each outcome its probability, then its evidence."""
        return [
            name
            for number, outcome in enumerate(self.outcomes)
            for name in (self.of(number), *(self.evidence(number, one) for one in outcome.evidence))
        ]

    def owners(self) -> list[str]:
        """Return the value column of the outcome of each of `names`."""
        return [name.partition("_")[0] for name in self.names()]

    def own(self) -> list[str]:
        """The value column of each outcome, without evidence."""
        return [self.of(number) for number in range(len(self.outcomes))]

    @staticmethod
    def of(number: int) -> str:
        return f"v{number}"

    @staticmethod
    def evidence(number: int, evidence: Evidence) -> str:
        return f"v{number}_{evidence.name}"

    def required(self, number: int) -> Required:
        """Return the values that must be higher in a group that has more wrong pairs."""
        names, evidence = self.names(), self.outcomes[number].evidence
        return Required(
            (
                names.index(self.of(number)),
                *(names.index(self.evidence(number, e)) for e in evidence),
            ),
            (1.0, *(one.least for one in evidence)),
        )


def pairs_query(
    connection: duckdb.DuckDBPyConnection,
    columns: Mapping[str, str],
    values: Values,
    further: Mapping[str, str],
) -> str:
    """SQL for the pairs with scores of the view `scores`, one row each.

    `stratum` is the class of the caption's length; `further` are columns by name with their SQL. It
    reads the table for what the evidence means first.
    """
    strata = length_class("len(tokens)") if "text" in columns else "0"
    selected = [identifier(name) for name in _KEPT if name in columns]
    selected += [f"{sql} AS {name}" for name, (source, sql) in DERIVED.items() if source in columns]
    selected += [f"{sql} AS {identifier(name)}" for name, sql in further.items()]
    for number, outcome in enumerate(values.outcomes):
        own, weight = _share(outcome.value), _share(outcome.weight)
        selected.append(f"({own} * {weight})::FLOAT AS {values.of(number)}")
        for one in outcome.evidence:
            sql = f"{weight} * {_meaning(connection, one, own, weight)}"
            selected.append(f"({sql})::FLOAT AS {values.evidence(number, one)}")
    # Outside, `tokens` is ours, not a column of the table.
    pairs = f"SELECT {', '.join(selected)} FROM scores WHERE status = 'ok'"
    return f"SELECT *, {strata}::UTINYINT AS stratum FROM ({pairs})"


def _share(value: str) -> str:
    """SQL: a number from 0 to 1, 0 for what is unknown."""
    number = f"({value})::DOUBLE"
    return f"(CASE WHEN isfinite({number}) THEN least(greatest({number}, 0), 1) ELSE 0 END)"


def _meaning(
    connection: duckdb.DuckDBPyConnection, evidence: Evidence, value: str, weight: str
) -> str:
    """SQL for the value of a piece of evidence; the probability itself where it tells nothing."""
    source = (
        f"(SELECT ({evidence.sql})::DOUBLE AS _x, {value} AS _y, {weight} AS _w "
        f"FROM scores WHERE status = 'ok') WHERE isfinite(_x)"
    )
    shares = [number / _BINS for number in range(1, _BINS)]
    ends = connection.execute(f"SELECT approx_quantile(_x, {shares}) FROM {source}").fetchall()
    bounds = sorted({bound for bound in ends[0][0] or () if math.isfinite(bound)})
    means = dict(
        connection.execute(
            f"SELECT {_bin('_x', bounds)}, sum(_w * _y) / sum(_w) FROM {source} GROUP BY 1"
        ).fetchall()
    )
    means = {number: mean for number, mean in means.items() if mean is not None}
    if not means:
        return value
    overall = sum(means.values()) / len(means)
    listed = ", ".join(repr(float(means.get(n, overall))) for n in range(len(bounds) + 1))
    number = f"({evidence.sql})::DOUBLE"
    return (
        f"(CASE WHEN isfinite({number}) THEN ([{listed}])[{_bin(number, bounds)} + 1] "
        f"ELSE {value} END)"
    )


def _bin(value: str, bounds: list[float]) -> str:
    """SQL for the number of bounds that a value lies above."""
    listed = f"[{', '.join(map(repr, bounds))}]::DOUBLE[]"
    return f"len(list_filter({listed}, lambda bound: {value} > bound))"
