"""Detection metrics: a score that separates mismatched from matched pairs, given the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ncclean.base.rules import DetectionCounts
from ncclean.errors import InputError
from ncclean.evaluation.curves import DetectionCurve, SortedScores


@dataclass(frozen=True)
class DetectionReport:
    """Detection of noisy pairs, the positive class. All but `threshold` lie in [0, 1].

    `clean_kept` and `noise_caught` are the OSA paper's two accuracies: the share of clean pairs
    that are not flagged, and of noisy pairs that are. Ratios without a denominator are NaN.
    """

    threshold: float
    accuracy: float
    precision: float
    recall: float
    f1: float
    auroc: float
    average_precision: float
    clean_kept: float
    noise_caught: float


def detection_report(score: ArrayLike, is_noisy: ArrayLike, threshold: float) -> DetectionReport:
    """Report on (N,) noise scores, higher is noisier; `score >= threshold` flags a pair.

    For cleanliness scores (cosine, weight, confidence) pass their negative, and the negative of
    the threshold. Raises `InputError` if the lengths differ or a score is NaN.
    """
    return report_on(_curve(score, is_noisy), threshold)


def report_on(curve: DetectionCurve, threshold: float) -> DetectionReport:
    """Detection metrics at a threshold, from a detection curve."""
    counts = DetectionCounts(*curve.at(threshold), noisy=curve.noisy, clean=curve.clean)
    return DetectionReport(
        threshold=threshold,
        accuracy=counts.accuracy,
        precision=counts.precision,
        recall=counts.recall,
        f1=counts.f1,
        auroc=curve.auroc,
        average_precision=curve.average_precision,
        clean_kept=counts.clean_kept,
        noise_caught=counts.recall,
    )


def mean_noise_rank(weight: ArrayLike, is_noisy: ArrayLike) -> float:
    """Mean rank of the noisy pairs by (N,) weight, descending from 1, ties averaged.

    The optimum, all n noisy pairs last, is N - (n - 1) / 2. Raises `InputError` if the lengths
    differ or a weight is NaN.
    """
    return _curve(-np.asarray(weight, dtype=np.float64), is_noisy).mean_noise_rank


def optimal_noise_rank(pairs: int, noisy: int) -> float:
    """The highest mean noise rank that `noisy` of `pairs` pairs can have: N - (n - 1) / 2."""
    return pairs - (noisy - 1) / 2 if noisy else float("nan")


def _curve(score: ArrayLike, is_noisy: ArrayLike) -> DetectionCurve:
    values = np.asarray(score, dtype=np.float64)
    truth = np.asarray(is_noisy, dtype=bool)
    if values.shape != truth.shape or values.ndim != 1:
        raise InputError(f"scores {values.shape} and truth {truth.shape} must have the same length")
    if np.isnan(values).any():
        raise InputError("scores must not be NaN: leave out pairs without a score")
    return SortedScores.of(values, truth.astype(np.int8)).curve()
