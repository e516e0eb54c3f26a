"""Find the best fraction of a DuckDB relation by `goodness`, exactly and in bounded memory.

Ties are broken by uid, then by place. Sorting the relation, or an exact quantile, would hold the
column in memory, so values are counted in equal buckets, then exactly in one of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import duckdb

from ncclean.storage.quoting import quoted

_BUCKETS = 1 << 16


@dataclass(frozen=True)
class BestFraction:
    """SQL conditions that select the best fraction of the pairs of a table.

    `exactly` selects the fraction, ties broken by uid and position; `or_equal` also selects the
    pairs tied with its last one, and `ties_dropped` only those not selected, None if there are
    none.
    """

    exactly: str
    or_equal: str
    ties_dropped: str | None = None


def find_best_fraction(
    connection: duckdb.DuckDBPyConnection, relation: str, fraction: float
) -> BestFraction:
    """Return SQL conditions for the best `fraction` of a relation's pairs, rounded to whole pairs.

    `relation` is SQL with the columns uid, place and `goodness`, which is never null.
    """
    count, low, high = _one(
        connection, f"SELECT count(*), min(goodness), max(goodness) FROM {relation}"
    )
    wanted = math.floor(fraction * count + 0.5)
    if wanted in (0, count):
        everything = "true" if wanted else "false"
        return BestFraction(everything, everything)
    bound, above, ties = _bound(connection, relation, wanted, float(low), float(high))
    or_equal = f"goodness >= {bound!r}::DOUBLE"
    if above + ties == wanted:
        return BestFraction(or_equal, or_equal)
    uid, place = _one(
        connection,
        f"SELECT uid, place FROM {relation} WHERE goodness = {bound!r}::DOUBLE "
        f"ORDER BY uid, place LIMIT 1 OFFSET {wanted - above - 1}",
    )
    last = f"row({quoted(uid)}, {place}::BIGINT)"
    return BestFraction(
        exactly=f"goodness > {bound!r}::DOUBLE OR "
        f"(goodness = {bound!r}::DOUBLE AND row(uid, place) <= {last})",
        or_equal=or_equal,
        ties_dropped=f"goodness = {bound!r}::DOUBLE AND row(uid, place) > {last}",
    )


def _bound(
    connection: duckdb.DuckDBPyConnection, relation: str, wanted: int, low: float, high: float
) -> tuple[float, int, int]:
    """Return the `wanted`-th best value, and the numbers of values above it and equal to it."""
    if low == high:
        return low, 0, int(_one(connection, f"SELECT count(*) FROM {relation}")[0])
    bucket = (
        f"least(floor((goodness::DOUBLE - {low!r}) / {high - low!r} * {_BUCKETS}), {_BUCKETS - 1})"
    )
    counts = connection.execute(
        f"SELECT {bucket} AS b, count(*) FROM {relation} GROUP BY b ORDER BY b DESC"
    ).fetchall()
    above, holding = _holder(counts, wanted)
    values = connection.execute(
        f"SELECT goodness::DOUBLE AS g, count(*) FROM {relation} WHERE {bucket} = {holding!r} "
        "GROUP BY g ORDER BY g DESC"
    ).fetchall()
    within, bound = _holder(values, wanted - above)
    return bound, above + within, int(dict(values)[bound])


def _holder(counts: list[tuple[float, int]], wanted: int) -> tuple[int, float]:
    """Find, in descending (value, count), the value at rank `wanted` and the count above it."""
    above = 0
    for value, count in counts:
        if above + count >= wanted:
            return above, value
        above += count
    raise AssertionError(f"only {above} of {wanted} values")


def _one(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    rows: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
    return rows[0]
