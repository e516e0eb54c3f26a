"""The pairs that a threshold on a score keeps: counts on a grid of thresholds, for every score.

The thresholds of the grid are short decimals, and each pair counts on the side where DuckDB puts
it, so the report shows the counts that a query with the threshold returns.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ncclean.base.schema import REPORT_SCORES, ScoreFacts
from ncclean.report.table import ScoreTable
from ncclean.storage.quoting import identifier

_STEPS = 1000


@dataclass(frozen=True)
class Grid:
    """Thresholds (first + k) * multiple / 10**digits for k = 0 .. steps."""

    first: int
    steps: int
    multiple: int
    digits: int

    @classmethod
    def over(cls, low: float, high: float) -> Grid:
        """About a thousand round thresholds over [low, high], from one that keeps all to one that
        keeps none."""
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
        """(steps + 1,) float64 thresholds of the grid."""
        return np.array([self.threshold(index) for index in range(self.steps + 1)])

    def text(self, index: int) -> str:
        """A threshold as SQL and the page write it."""
        return f"{self.threshold(index):.{self.digits}f}"


@dataclass(frozen=True)
class ScoreCurve:
    """Pairs per step of a score's grid; arrays of length `grid.steps`.

    `wrong` is the sum of `noise_probability` (None if the table has none), `noisy` the number of
    pairs known to be noisy (None without ground truth), `lowest` the lowest cosine (nan in an
    empty step). Step k holds the scores from threshold k up to, without, threshold k + 1.
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
        """Whether thresholds on this score keep the pairs below them, not those above."""
        return not self.score.higher_is_cleaner

    @property
    def total(self) -> int:
        return int(self.pairs.sum())

    def kept(self, per_step: np.ndarray) -> np.ndarray:
        """(steps + 1,) sums of a quantity by step, over the pairs that each threshold keeps."""
        below = np.concatenate([[0], np.cumsum(per_step)])
        return below if self.keeps_below else below[-1] - below

    def condition(self, index: int) -> str:
        """SQL that is true for the pairs that a threshold on this score keeps."""
        sign = "<" if self.keeps_below else ">="
        return f"{self.column} {sign} {self.grid.text(index)}"

    @property
    def start(self) -> int:
        """First position of the slider: one half, or where as many stay as should match."""
        if self.score.is_share:
            return self.grid.steps // 2
        wrong = self.total / 2 if self.wrong is None else float(self.wrong.sum())
        target = self.total - wrong
        return int(np.argmin(np.abs(self.kept(self.pairs) - target)))


def score_curves(table: ScoreTable) -> tuple[ScoreCurve, ...]:
    """The threshold curves of all scores in the table, the noise probability first."""
    return tuple(
        curve
        for relation, scores in (("pairs", _scores(table)), ("joined_pairs", table.joined_scores))
        for curve in _curves(table, relation, scores)
    )


def _scores(table: ScoreTable) -> Mapping[str, ScoreFacts]:
    """The facts of the scores in this table: its probability may be that of another score."""
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
        # Divided, not multiplied by a step: DuckDB compares the column with the FLOAT of the double
        # nearest to the decimal in a query.
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
        lowest[index] = np.nanmin([lowest[index], cosine])
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
