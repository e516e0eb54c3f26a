"""The figures of `ncclean evaluate noise`: detection of each kind of noise, and calibration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ncclean.base.estimates import Estimate
from ncclean.base.rules import DetectionCounts, Rule, ratio
from ncclean.evaluation.detection import (
    DetectionCurve,
    DetectionReport,
    SortedScores,
    optimal_noise_rank,
    report_on,
)
from ncclean.evaluation.noise_choice import NoiseScore, threshold_at_rate

BINS = 10
ALL = "all"  # every kind of noise together
_HISTOGRAM_BINS = 40


@dataclass(frozen=True)
class ReliabilityBin:
    """The calibration of pairs with a noise probability in [low, high); the last bin has its end.

    `predicted` is their mean probability, `observed` the share that is noisy; NaN without pairs.
    """

    low: float
    high: float
    pairs: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class SideCount:
    """The noisy pairs on one side of a cut: `expected` from the probabilities, `noisy` in truth."""

    pairs: int
    expected: float
    noisy: int
    by_kind: dict[str, int]


@dataclass(frozen=True)
class Calibration:
    """How well noise probabilities agree with the truth, by bin and overall.

    `kept` and `dropped` are the sides of a cut at 0.5. `expected_error` is the mean of |predicted -
    observed| over the pairs (ECE), `brier` the mean squared error of the probabilities.
    """

    bins: list[ReliabilityBin]
    expected_error: float
    brier: float
    kept: SideCount
    dropped: SideCount


def calibration(
    pairs: np.ndarray, probability: np.ndarray, squares: np.ndarray, kinds: list[str]
) -> Calibration:
    """Compare predicted noise probabilities with the truth, from sums by bin and kind of noise.

    `pairs` (BINS, K + 1) counts pairs, clean ones in the first column; `probability` and `squares`
    (BINS, K + 1) are sums of p and of p^2 over them; `kinds` are the K names.
    """
    total, noisy = pairs.sum(axis=1), pairs[:, 1:].sum(axis=1)
    with np.errstate(invalid="ignore"):
        predicted, observed = probability.sum(axis=1) / total, noisy / total
    bins = [
        ReliabilityBin(
            low=number / BINS,
            high=(number + 1) / BINS,
            pairs=int(total[number]),
            predicted=float(predicted[number]),
            observed=float(observed[number]),
        )
        for number in range(BINS)
    ]
    everything = int(total.sum())
    gap = np.nansum(np.abs(predicted - observed) * total)
    # (p - 1)^2 for noisy pairs, p^2 for clean ones.
    errors = squares.sum() - 2 * probability[:, 1:].sum() + noisy.sum()
    half = BINS // 2
    return Calibration(
        bins=bins,
        expected_error=float(gap / everything) if everything else math.nan,
        brier=float(errors / everything) if everything else math.nan,
        kept=_side(pairs[:half], probability[:half], kinds),
        dropped=_side(pairs[half:], probability[half:], kinds),
    )


def _side(pairs: np.ndarray, probability: np.ndarray, kinds: list[str]) -> SideCount:
    counts = pairs.sum(axis=0)
    return SideCount(
        pairs=int(counts.sum()),
        expected=float(probability.sum()),
        noisy=int(counts[1:].sum()),
        by_kind={kind: int(count) for kind, count in zip(kinds, counts[1:], strict=True)},
    )


@dataclass(frozen=True)
class KindDetection:
    """The detection of one kind of noise (or `ALL`) among the clean pairs.

    Pairs of other kinds are excluded. `report.threshold` is in units of the column.
    `best_threshold` has the highest F1, `best_f1`, which only the truth can show.
    """

    kind: str
    noisy: int
    clean: int
    report: DetectionReport
    mean_noise_rank: float
    optimal_noise_rank: float
    best_threshold: float
    best_f1: float


@dataclass(frozen=True)
class ScoreEvaluation:
    """How well a column detects noise, over its `pairs`; `unscored` pairs have no value in it.

    `flags` is the condition that flags a pair, `threshold_source` the origin of its threshold.
    """

    column: str
    higher_is_noisier: bool
    flags: str
    threshold_source: str
    pairs: int
    unscored: int
    kinds: list[KindDetection]


@dataclass(frozen=True)
class RuleEvaluation:
    """How well a rule detects noise: shares of clean pairs kept and of noisy pairs caught, by kind.

    `precision` is the share of noisy pairs among the flagged ones, of all kinds.
    """

    rule: str
    flags: str
    pairs: int
    flagged: int
    clean_kept: float
    noise_caught: dict[str, float]
    precision: float


@dataclass(frozen=True)
class NoiseTrial:
    """Noise rates estimated before and after a share of the pairs, `moved`, got other captions.

    `noise` is their kind: `ncr`, captions of other pairs, or `donor`, captions of another corpus.
    If the rate `before` is right, the one `after` should be `expected`: before + moved (1 -
    before).
    """

    noise: str
    pairs: int
    moved: float
    before: Estimate
    after: Estimate

    @property
    def expected(self) -> float:
        """The noise rate to expect after the injection, if the estimate before it is right."""
        return self.before.value + self.moved * (1 - self.before.value)


@dataclass(frozen=True)
class NoiseEvaluation:
    """The evaluation of a score table whose pairs' truth is known.

    `clean` and `noisy` (by kind) count the scored pairs with truth, `unscored` those without
    scores, and `unknown` the pairs without truth. `noise_rate` is the estimate that operating
    points use, `noise_rate_source` its origin. `joined` counts the rows with a match in each joined
    table.
    """

    clean: int
    noisy: dict[str, int]
    unscored: int
    unknown: int
    noise_rate: float
    noise_rate_source: str
    scores: list[ScoreEvaluation]
    rules: list[RuleEvaluation]
    calibration: Calibration | None
    joined: dict[str, int]
    trial: NoiseTrial | None = None  # if the noise was injected for this evaluation

    @property
    def rows(self) -> int:
        """The number of rows of the table."""
        return self.clean + sum(self.noisy.values()) + self.unscored + self.unknown


@dataclass(frozen=True)
class ScoreFigure:
    """The plot of a column: points of its detection curves, and its distribution.

    `counts` (K + 1, B) per kind, clean first, in bins with `edges` (B + 1,) in column units.
    """

    column: str
    false_alarm_rate: np.ndarray
    recall: np.ndarray
    precision: np.ndarray
    edges: np.ndarray
    counts: np.ndarray


def evaluate_score(
    scores: SortedScores,
    column: NoiseScore,
    kinds: Sequence[str],
    noise_rate: float,
    noise_rate_source: str,
    unscored: int,
) -> ScoreEvaluation:
    """Evaluate (N,) noise scores, higher is noisier, against every kind of noise."""
    if column.threshold is not None:
        threshold, source = column.threshold, "given"
        cut = column.noise_threshold(threshold, scores.values.dtype)
    else:
        cut = threshold_at_rate(scores.values, noise_rate)
        threshold, source = column.sign * cut, f"the noisiest {noise_rate:.1%}, {noise_rate_source}"
    detections = [_detect(ALL, scores.curve(), column, cut, threshold)]
    detections += [
        _detect(kind, scores.curve(number), column, cut, threshold)
        for number, kind in enumerate(kinds, start=1)
    ]
    return ScoreEvaluation(
        column=column.column,
        higher_is_noisier=column.higher_is_noisier,
        # In the shortest digits of the column's type: a rounded one excludes the threshold's pairs.
        flags=column.condition(scores.values.dtype.type(threshold)),
        threshold_source=source,
        pairs=len(scores.values),
        unscored=unscored,
        kinds=detections,
    )


def evaluate_rule(
    rule: Rule, pairs: np.ndarray, flagged: np.ndarray, kinds: Sequence[str]
) -> RuleEvaluation:
    """Return precision and recall of a rule, from (K + 1,) pairs and flagged pairs, clean first."""
    caught = {
        kind: ratio(int(flagged[number]), int(pairs[number]))
        for number, kind in enumerate(kinds, start=1)
    }
    counts = DetectionCounts(
        caught=int(flagged[1:].sum()),
        alarms=int(flagged[0]),
        noisy=int(pairs[1:].sum()),
        clean=int(pairs[0]),
    )
    return RuleEvaluation(
        rule=rule.title,
        flags=rule.condition,
        pairs=int(pairs.sum()),
        flagged=counts.flagged,
        clean_kept=counts.clean_kept,
        noise_caught={ALL: counts.recall, **caught},
        precision=counts.precision,
    )


def figure_of(scores: SortedScores, column: NoiseScore, kinds: Sequence[str]) -> ScoreFigure:
    """Return what a plot draws of (N,) noise scores."""
    alarms, recall, precision = scores.curve().points()
    finite = scores.values[np.isfinite(scores.values)]
    # Outliers would squeeze all other pairs into a few bins.
    low, high = np.quantile(finite, [0.001, 0.999]) if len(finite) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1, _HISTOGRAM_BINS + 1)
    clipped = scores.values.clip(edges[0], edges[-1])
    counts = np.stack(
        [np.histogram(clipped[scores.code == number], edges)[0] for number in range(len(kinds) + 1)]
    )
    if not column.higher_is_noisier:
        edges, counts = -edges[::-1], counts[:, ::-1]
    return ScoreFigure(column.column, alarms, recall, precision, edges, counts)


def _detect(
    kind: str, curve: DetectionCurve, column: NoiseScore, cut: float, threshold: float
) -> KindDetection:
    report = report_on(curve, cut)
    best, best_f1 = curve.best_f1()
    return KindDetection(
        kind=kind,
        noisy=curve.noisy,
        clean=curve.clean,
        report=dataclasses.replace(report, threshold=threshold),
        mean_noise_rank=curve.mean_noise_rank,
        optimal_noise_rank=optimal_noise_rank(curve.noisy + curve.clean, curve.noisy),
        best_threshold=column.sign * best,
        best_f1=best_f1,
    )
