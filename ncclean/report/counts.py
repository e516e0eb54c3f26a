"""Count pairs: by status, by shard, and by the rules that flag them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ncclean.base.rules import REPORTED, DetectionCounts, Rule
from ncclean.errors import InputError
from ncclean.report.formats import shown_text
from ncclean.report.table import SHARD, ScoreTable

_EXAMPLE_CHARACTERS = 200
MOST_SHOWN = 300
_LONGEST_NAME = 200  # bytes; a name in others' tables may have a megabyte
_MOST_KINDS = 8


@dataclass(frozen=True)
class Failure:
    """A kind of failure and its commonest reason, found approximately in bounded memory."""

    status: str
    count: int
    shards: int
    example: str | None


@dataclass(frozen=True)
class PairCounts:
    """The numbers of pairs by status; `expected_mismatched` is the sum of `noise_probability`.

    It is None without noise probabilities.
    """

    rows: int
    ok: int
    shards: int
    expected_mismatched: float | None
    calibrated: int  # pairs with a noise_probability
    failures: tuple[Failure, ...]


def count_pairs(table: ScoreTable) -> PairCounts:
    """Count the rows of a score table by status. Raises `InputError` for rows without one."""
    rows, stated, ok, shards, expected, calibrated = table.rows(
        "SELECT count(*), count(status), count(*) FILTER (status = 'ok'), "
        f"count(DISTINCT {SHARD}), "
        "sum(noise_probability) FILTER (status = 'ok'), "
        "count(noise_probability) FILTER (status = 'ok') FROM pairs"
    )[0]
    if stated < rows:
        raise InputError(
            f"{rows - stated:,} of {rows:,} rows have no status: not every file that was named is "
            "a score table; name that alone, such as scores.parquet"
        )
    failures = table.rows(
        f"SELECT status, count(*) AS pairs, count(DISTINCT {SHARD}), "
        f"approx_top_k(left(error, {_EXAMPLE_CHARACTERS}), 1)[1] "
        "FROM pairs WHERE status <> 'ok' GROUP BY status ORDER BY pairs DESC, status"
    )
    return PairCounts(rows, ok, shards, expected, calibrated, tuple(Failure(*f) for f in failures))


@dataclass(frozen=True)
class ShardRow:
    """The pairs of a shard; `noise_rate` is the mean `noise_probability` of those that have one.

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
    """The shards of a report: `rows` are all by name, or only the most unusual ones.

    `quantiles` are the noise rates below which 5, 25, 50, 75 and 95 % of all shards lie.
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
    # floor under p q excludes shards with one failure in a million.
    table.rows(
        "CREATE OR REPLACE TEMP TABLE shard_figures AS "
        f"WITH figures AS (SELECT {SHARD} AS shard, count(*) AS n, "
        "count(*) FILTER (status = 'ok') AS scored, "
        "count(noise_probability) FILTER (status = 'ok') AS calibrated, "
        "sum(noise_probability) FILTER (status = 'ok') AS wrong, "
        f"avg(similarity) FILTER (status = 'ok') AS cosine FROM pairs GROUP BY {SHARD}), "
        "corpus AS (SELECT sum(wrong) / sum(calibrated) AS p, 1 - sum(scored) / sum(n) AS f "
        "FROM figures) "
        "SELECT shard, n, scored, wrong / nullif(calibrated, 0) AS rate, cosine, greatest("
        "coalesce(abs(wrong / nullif(calibrated, 0) - p) "
        "/ sqrt(greatest(p * (1 - p), 1e-4) / nullif(calibrated, 0)), 0), "
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


@dataclass(frozen=True)
class Combination:
    """The number of pairs that exactly these rules flag; bit i of `mask` stands for rule i."""

    mask: int
    pairs: int
    expected_mismatched: float | None


@dataclass(frozen=True)
class Detection:
    """How well a rule finds noise, by the truth; `by_kind` is the share of each kind it flags."""

    rule: Rule
    counts: DetectionCounts
    by_kind: dict[str, float]


@dataclass(frozen=True)
class Truth:
    """The pairs whose json says whether they are noisy, and how well every rule finds the noise."""

    noisy: int
    clean: int
    kinds: dict[str, int]
    expected_mismatched: float | None  # sum of noise_probability over the same pairs
    detections: tuple[Detection, ...]


@dataclass(frozen=True)
class RuleOverlap:
    """How many pairs several rules flag together.

    `combinations` partition the scored pairs, the largest first.
    """

    rules: tuple[Rule, ...]
    combinations: tuple[Combination, ...]
    truth: Truth | None = field(default=None)

    @property
    def pairs(self) -> int:
        return sum(combination.pairs for combination in self.combinations)

    def both(self, first: int, second: int) -> int:
        """Return the number of pairs that two rules both flag."""
        wanted = 1 << first | 1 << second
        return sum(c.pairs for c in self.combinations if c.mask & wanted == wanted)

    def jaccard(self, first: int, second: int) -> float | None:
        """Return the Jaccard index of two rules: pairs that both flag over pairs that any flags."""
        both = self.both(first, second)
        either = self.both(first, first) + self.both(second, second) - both
        return both / either if either else None


def overlap_of_rules(table: ScoreTable) -> RuleOverlap:
    filled = table.rows(
        f"SELECT {', '.join(f'count({rule.condition})' for rule in REPORTED)} "
        "FROM pairs WHERE status = 'ok'"
    )[0]
    rules = tuple(rule for rule, count in zip(REPORTED, filled, strict=True) if count)
    kinds = dict(
        table.rows(
            "SELECT noise_kind, count(*) AS pairs FROM pairs WHERE status = 'ok' AND is_noisy "
            "AND noise_kind <> '' GROUP BY noise_kind ORDER BY pairs DESC, noise_kind "
            f"LIMIT {_MOST_KINDS}"
        )
    )
    bits = [f"coalesce({rule.condition}, false)::INTEGER << {i}" for i, rule in enumerate(rules)]
    mask = " | ".join(f"({bit})" for bit in bits) or "0"
    # One pass over the pairs; the rest counts these few rows.
    table.rows(
        f"CREATE OR REPLACE TEMP TABLE rule_cells AS SELECT {mask} AS mask, is_noisy, "
        "CASE WHEN is_noisy THEN list_position(?, noise_kind) END AS kind, count(*) AS pairs, "
        "sum(noise_probability) AS wrong FROM pairs WHERE status = 'ok' GROUP BY ALL",
        [list(kinds)],
    )
    combinations = table.rows(
        "SELECT mask, sum(pairs), sum(wrong) FROM rule_cells "
        "GROUP BY mask ORDER BY sum(pairs) DESC, mask"
    )
    return RuleOverlap(
        rules, tuple(Combination(*row) for row in combinations), _truth(table, rules, kinds)
    )


def _truth(table: ScoreTable, rules: tuple[Rule, ...], kinds: dict[str, int]) -> Truth | None:
    noisy, clean, expected = table.rows(
        "SELECT sum(pairs) FILTER (is_noisy), coalesce(sum(pairs) FILTER (NOT is_noisy), 0), "
        "sum(wrong) FILTER (is_noisy IS NOT NULL) FROM rule_cells"
    )[0]
    if not noisy:
        return None
    by_kind = ", ".join(f"sum(pairs) FILTER (kind = {n})" for n in range(1, len(kinds) + 1))
    flagged = table.rows(
        "SELECT sum(pairs) FILTER (is_noisy), sum(pairs) FILTER (NOT is_noisy), "
        f"[{by_kind}] FROM range({len(rules)}) AS rules(rule) "
        "LEFT JOIN rule_cells ON (mask >> rule) & 1 = 1 GROUP BY rule ORDER BY rule"
    )
    detections = tuple(
        Detection(
            rule=rule,
            counts=DetectionCounts(caught or 0, alarms or 0, noisy, clean),
            by_kind={
                name: (count or 0) / pairs
                for (name, pairs), count in zip(kinds.items(), counts, strict=True)
            },
        )
        for rule, (caught, alarms, counts) in zip(rules, flagged, strict=True)
    )
    return Truth(noisy, clean, kinds, expected, detections)
