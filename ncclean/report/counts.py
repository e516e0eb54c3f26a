"""Counts of pairs: all, scored, and failed by reason."""

from __future__ import annotations

from dataclasses import dataclass

from ncclean.errors import InputError
from ncclean.report.table import ScoreTable

_EXAMPLE_CHARACTERS = 200


@dataclass(frozen=True)
class Failure:
    """A kind of failure and its commonest explanation, found approximately in bounded memory."""

    status: str
    count: int
    shards: int
    example: str | None


@dataclass(frozen=True)
class PairCounts:
    """`expected_mismatched` is the sum of `noise_probability`, None if the table has none."""

    rows: int
    ok: int
    shards: int
    expected_mismatched: float | None
    calibrated: int  # pairs with a noise_probability
    failures: tuple[Failure, ...]


def count_pairs(table: ScoreTable) -> PairCounts:
    """Count the rows of a score table by status. Raises `InputError` for rows without one."""
    rows, stated, ok, shards, expected, calibrated = table.rows(
        "SELECT count(*), count(status), count(*) FILTER (status = 'ok'), count(DISTINCT shard), "
        "sum(noise_probability) FILTER (status = 'ok'), "
        "count(noise_probability) FILTER (status = 'ok') FROM pairs"
    )[0]
    if stated < rows:
        raise InputError(
            f"{rows - stated:,} of {rows:,} rows have no status: not every file that was named is "
            "a score table; name that alone, such as scores.parquet"
        )
    failures = table.rows(
        "SELECT status, count(*) AS pairs, count(DISTINCT shard), "
        f"approx_top_k(left(error, {_EXAMPLE_CHARACTERS}), 1)[1] "
        "FROM pairs WHERE status <> 'ok' GROUP BY status ORDER BY pairs DESC, status"
    )
    return PairCounts(rows, ok, shards, expected, calibrated, tuple(Failure(*f) for f in failures))
