"""The shards one by one; of very many shards, the most unusual ones."""

from __future__ import annotations

from dataclasses import dataclass

from ncclean.report.captions import shown_text
from ncclean.report.table import ScoreTable

MOST_SHOWN = 300
_LONGEST_NAME = 200  # bytes; of tables of others, a name may have a megabyte


@dataclass(frozen=True)
class ShardRow:
    """`noise_rate` is the mean `noise_probability` of the scored pairs.

    `unusual` is the distance of the noise rate, or of the share of failures, from the corpus's in
    standard errors, whichever is larger.
    """

    shard: str
    rows: int
    ok: int
    failed: int
    noise_rate: float | None
    similarity: float | None
    unusual: float


@dataclass(frozen=True)
class ShardTable:
    """`rows` are all shards by name, or only the most unusual ones; `quantiles` are over all.

    `quantiles` holds the noise rates below which 5, 25, 50, 75 and 95 % of the shards lie.
    """

    total: int
    with_failures: int
    rows: tuple[ShardRow, ...]
    quantiles: tuple[float, ...] | None

    @property
    def is_complete(self) -> bool:
        return len(self.rows) == self.total


def shard_table(table: ScoreTable, most: int = MOST_SHOWN) -> ShardTable:
    # The z-score of a share x of n pairs around the corpus's share p: (x - p) / sqrt(p q / n). The
    # floor under p q keeps out shards with one failure in a million.
    table.rows(
        "CREATE OR REPLACE TEMP TABLE shard_figures AS "
        "WITH figures AS (SELECT shard, count(*) AS n, count(*) FILTER (status = 'ok') AS scored, "
        "sum(noise_probability) FILTER (status = 'ok') AS wrong, "
        "avg(similarity) FILTER (status = 'ok') AS cosine FROM pairs GROUP BY shard), "
        "corpus AS (SELECT sum(wrong) / sum(scored) AS p, 1 - sum(scored) / sum(n) AS f "
        "FROM figures) "
        "SELECT shard, n, scored, wrong / nullif(scored, 0) AS rate, cosine, greatest("
        "coalesce(abs(wrong / nullif(scored, 0) - p) "
        "/ sqrt(greatest(p * (1 - p), 1e-4) / nullif(scored, 0)), 0), "
        "coalesce(abs((n - scored) / n - f) / sqrt(greatest(f * (1 - f), 1e-4) / n), 0)"
        ") AS unusual FROM figures, corpus"
    )
    total, with_failures, quantiles = table.rows(
        "SELECT count(*), count(*) FILTER (n > scored), "
        "quantile_cont(rate, [0.05, 0.25, 0.5, 0.75, 0.95]) FROM shard_figures"
    )[0]
    rows = table.rows(
        "SELECT shard, n, scored, n - scored, rate, cosine, unusual FROM shard_figures "
        f"ORDER BY {'shard' if total <= most else 'unusual DESC, shard'} LIMIT {most}"
    )
    return ShardTable(
        total=total,
        with_failures=with_failures,
        rows=tuple(ShardRow(shown_text(str(row[0]), _LONGEST_NAME)[0], *row[1:]) for row in rows),
        quantiles=tuple(quantiles) if quantiles else None,
    )
