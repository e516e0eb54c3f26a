"""Histograms of a table's scores: the cosines, and the pairs that each threshold keeps.

The thresholds of the grid are short decimals, and each pair counts on the side where DuckDB puts
it, so the report's counts equal those of a query with the threshold.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ncclean.base.schema import REPORT_SCORES, ScoreFacts
from ncclean.report.table import ScoreTable
from ncclean.scoring.null import BINS
from ncclean.storage.quoting import identifier
from ncclean.storage.run_facts import RunFacts

_TAIL = 2e-4  # share of the pairs that may lie beyond each end of the axis
_FEWEST_BINS, _MOST_BINS = 16, 144
_STEPS = 1000


@dataclass(frozen=True)
class CosineDistribution:
    """A histogram of the cosines of scored pairs, with expected matched and mismatched pairs.

    All arrays have one value for each of K bins. `edges` (K + 1,) are on a grid of 1/2048.
    `mismatched` is the expected number of mismatched pairs: noise rate times the null or, in a
    table without the null, the sum of `noise_probability`; `matched` is the rest, at least 0. Both
    are None if the table has neither. `probability` is the mean `noise_probability` of the pairs in
    a bin, nan in an empty one.
    """

    edges: np.ndarray
    observed: np.ndarray
    mismatched: np.ndarray | None
    matched: np.ndarray | None
    probability: np.ndarray
    has_null: bool
    null_pairs: int
    null_median: float | None
    beyond: int  # observed pairs outside the edges

    @property
    def width(self) -> float:
        """The width of a bin, in cosine."""
        return float(self.edges[1] - self.edges[0])

    @property
    def centres(self) -> np.ndarray:
        return np.asarray((self.edges[:-1] + self.edges[1:]) / 2)


def cosine_distribution(table: ScoreTable) -> CosineDistribution | None:
    """Return the histogram of cosines of a table's scored pairs; None if there are none."""
    counts, calibrated = np.zeros(BINS, dtype=np.int64), np.zeros(BINS, dtype=np.int64)
    expected = np.zeros(BINS)
    for index, pairs, wrong, with_probability in table.rows(
        f"SELECT greatest(0, least({BINS - 1}, floor((similarity + 1) * {BINS // 2})))::INTEGER "
        "AS bin, count(*), sum(noise_probability), count(noise_probability) "
        "FROM pairs WHERE status = 'ok' AND isfinite(similarity) GROUP BY bin"
    ):
        counts[index], expected[index] = pairs, wrong or 0.0
        calibrated[index] = with_probability
    return bin_cosines(counts, expected, calibrated, table.facts) if counts.any() else None


def bin_cosines(
    counts: np.ndarray, expected: np.ndarray, calibrated: np.ndarray, facts: RunFacts
) -> CosineDistribution:
    """Merge 4,096 fine bins of cosines into as few as suit the number of pairs.

    `counts`, `expected` and `calibrated` are (4096,): pairs, the sum of their
    `noise_probability`, and the number of pairs that have one.
    """
    null = facts.mismatched.counts if facts.mismatched is not None else None
    pairs = int(counts.sum())
    low, high = _range(counts, null)
    wanted = int(np.clip(4 * pairs ** (1 / 3), _FEWEST_BINS, _MOST_BINS))
    joined = _join((high - low) / wanted)
    first, last = low // joined, -(-high // joined)
    edges = np.arange(first, last + 1) * joined * (2.0 / BINS) - 1.0

    def coarse(fine: np.ndarray) -> np.ndarray:
        return np.asarray(fine.reshape(-1, joined).sum(axis=1)[first:last])

    observed, with_probability = coarse(counts), coarse(calibrated)
    probability = np.full(len(observed), np.nan)
    np.divide(coarse(expected), with_probability, out=probability, where=with_probability > 0)
    mismatched = None
    # An audit adds near misses, which do not follow the null.
    if null is not None and facts.noise_rate.is_known and facts.audited is None:
        mismatched = coarse(null) * (facts.noise_rate.value * pairs / null.sum())
    elif calibrated.any():
        mismatched = coarse(expected)
    return CosineDistribution(
        edges=edges,
        observed=observed,
        mismatched=mismatched,
        matched=None if mismatched is None else np.maximum(observed - mismatched, 0.0),
        probability=probability,
        has_null=null is not None,
        null_pairs=int(null.sum()) if null is not None else 0,
        null_median=histogram_median(null) if null is not None else None,
        beyond=pairs - int(observed.sum()),
    )


def histogram_median(counts: np.ndarray) -> float:
    """Return the median of a histogram of (4096,) counts over [-1, 1], interpolated in its bin."""
    cumulative = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
    above = int(np.searchsorted(cumulative, 0.5, side="left"))
    share = (0.5 - cumulative[above - 1]) / (cumulative[above] - cumulative[above - 1])
    return float((above - 1 + share) * 2.0 / BINS - 1.0)


def _range(*histograms: np.ndarray | None) -> tuple[int, int]:
    """The first bin, and the one after the last, without the tails of any histogram."""
    lows, highs = [], []
    for counts in histograms:
        if counts is not None:
            share = np.cumsum(counts) / counts.sum()
            lows.append(int(np.searchsorted(share, _TAIL, side="right")))
            highs.append(int(np.searchsorted(share, 1 - _TAIL, side="left")) + 1)
    return max(min(lows), 0), min(max(highs), BINS)


def _join(wanted: float) -> int:
    """The number of fine bins to join, as a power of two so that bins align."""
    return int(2 ** max(0, round(math.log2(wanted))))


@dataclass(frozen=True)
class Grid:
    """Round thresholds (first + k) * multiple / 10**digits, for k = 0 .. steps."""

    first: int
    steps: int
    multiple: int
    digits: int

    @classmethod
    def over(cls, low: float, high: float) -> Grid:
        """Return a grid of about a thousand round thresholds over [low, high].

        The first keeps all scores, the last none.
        """
        span = max(high - low, 1e-6)
        digits = math.ceil(-math.log10(span / _STEPS))
        multiple = next(m for m in (1, 2, 5, 10) if m * 10.0**-digits * _STEPS >= span)
        if digits < 0:
            multiple, digits = multiple * 10**-digits, 0
        step = multiple / 10**digits
        # Rounding may put a whole number of steps just below it.
        first = math.floor(low / step - 1e-9)
        return cls(first, math.floor(high / step + 1e-9) + 1 - first, multiple, digits)

    def threshold(self, index: int) -> float:
        return float((self.first + index) * self.multiple / 10**self.digits)

    @property
    def thresholds(self) -> np.ndarray:
        """The (steps + 1,) float64 thresholds of the grid."""
        return np.array([self.threshold(index) for index in range(self.steps + 1)])

    def text(self, index: int) -> str:
        """Return a threshold of the grid as SQL and the page write it."""
        return f"{self.threshold(index):.{self.digits}f}"


@dataclass(frozen=True)
class ScoreCurve:
    """The numbers of pairs per step of a grid of thresholds on a score.

    Arrays have length `grid.steps`. `wrong` is the sum of `noise_probability` (None if the table
    has none), `noisy` the number of pairs known to be noisy (None without ground truth), `lowest`
    the lowest cosine (nan in an empty step). Step k holds the scores from threshold k up to,
    without, threshold k + 1.
    """

    column: str
    score: ScoreFacts
    grid: Grid
    pairs: np.ndarray
    wrong: np.ndarray | None
    noisy: np.ndarray | None
    lowest: np.ndarray

    @property
    def keeps_below(self) -> bool:
        """Whether thresholds on this score keep the pairs below them instead of above."""
        return not self.score.higher_is_cleaner

    @property
    def total(self) -> int:
        return int(self.pairs.sum())

    def kept(self, per_step: np.ndarray) -> np.ndarray:
        """Return (steps + 1,) sums of a quantity by step, over the pairs each threshold keeps."""
        below = np.concatenate([[0], np.cumsum(per_step)])
        return below if self.keeps_below else below[-1] - below

    def condition(self, index: int) -> str:
        """Return SQL that is true for the pairs that a threshold on this score keeps."""
        sign = "<" if self.keeps_below else ">="
        return f"{self.column} {sign} {self.grid.text(index)}"

    @property
    def start(self) -> int:
        """The slider's first position: one half, or where as many pairs stay as should match."""
        if self.score.is_share:
            return self.grid.steps // 2
        wrong = self.total / 2 if self.wrong is None else float(self.wrong.sum())
        target = self.total - wrong
        return int(np.argmin(np.abs(self.kept(self.pairs) - target)))


def score_curves(table: ScoreTable) -> tuple[ScoreCurve, ...]:
    """Return the threshold curves of all scores in a table, the noise probability first."""
    return tuple(
        curve
        for relation, scores in (("pairs", _scores(table)), ("joined_pairs", table.joined_scores))
        for curve in _curves(table, relation, scores)
    )


def _scores(table: ScoreTable) -> Mapping[str, ScoreFacts]:
    """The scores in this table; its probability may be that of another score than the cosine."""
    if table.facts.calibrated_on in (None, "similarity"):
        return REPORT_SCORES
    probability = dataclasses.replace(REPORT_SCORES["noise_probability"], follows_cosine=False)
    return {**REPORT_SCORES, "noise_probability": probability}


def _curves(
    table: ScoreTable, relation: str, scores: Mapping[str, ScoreFacts]
) -> Iterator[ScoreCurve]:
    if not scores:
        return
    bounds = ", ".join(f"min({name}), max({name})" for name in map(identifier, scores))
    ends = table.rows(f"SELECT {bounds} FROM {relation} WHERE status = 'ok'")[0]
    for number, (column, score) in enumerate(scores.items()):
        low, high = ends[2 * number : 2 * number + 2]
        if low is None or not (math.isfinite(low) and math.isfinite(high)):
            continue
        # The last step from 0 to 1 holds values of exactly 1.
        grid = Grid(0, _STEPS + 1, 1, 3) if score.is_share else Grid.over(low, high)
        yield _curve(table, relation, column, score, grid)


def _curve(
    table: ScoreTable, relation: str, column: str, score: ScoreFacts, grid: Grid
) -> ScoreCurve:
    name = identifier(column)

    def threshold(step: str) -> str:
        # Divided, not multiplied by a step: in a query, DuckDB compares the column with the FLOAT
        # of the double nearest to the decimal.
        return f"(({step}) * {grid.multiple} / 1e{grid.digits})::FLOAT"

    guess = f"floor({name} / {grid.multiple / 10**grid.digits!r})::INTEGER"
    rows = table.rows(
        f"WITH guessed AS (SELECT {name} AS value, {guess} AS step, noise_probability, "
        f"similarity, is_noisy FROM {relation} WHERE status = 'ok' AND {name} IS NOT NULL) "
        f"SELECT step + (value >= {threshold('step + 1')})::INTEGER "
        f"- (value < {threshold('step')})::INTEGER AS exact, count(*), sum(noise_probability), "
        "count(noise_probability), count(*) FILTER (is_noisy), count(is_noisy), min(similarity) "
        "FROM guessed GROUP BY exact"
    )
    pairs = np.zeros(grid.steps, dtype=np.int64)
    noisy, wrong = pairs.copy(), np.zeros(grid.steps)
    lowest = np.full(grid.steps, np.nan)
    calibrated = labelled = 0
    for step, count, expected, with_p, known_noisy, with_truth, cosine in rows:
        index = min(max(step - grid.first, 0), grid.steps - 1)
        pairs[index] += count
        wrong[index] += expected or 0.0
        noisy[index] += known_noisy
        if cosine is not None:
            lowest[index] = np.fmin(lowest[index], cosine)
        calibrated += with_p
        labelled += with_truth
    return ScoreCurve(
        column=column,
        score=score,
        grid=grid,
        pairs=pairs,
        wrong=wrong if calibrated else None,
        noisy=noisy if labelled else None,
        lowest=lowest,
    )
