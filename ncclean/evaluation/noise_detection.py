"""How well a score tells mismatched pairs from matched ones, where the truth is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ncclean.errors import InputError


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
    from sklearn.metrics import average_precision_score, roc_auc_score

    values, truth = _checked(score, is_noisy)
    flagged = values >= threshold
    caught, alarms = int((flagged & truth).sum()), int((flagged & ~truth).sum())
    noisy, clean = int(truth.sum()), int((~truth).sum())
    precision, recall = _ratio(caught, caught + alarms), _ratio(caught, noisy)
    both = noisy > 0 and clean > 0
    return DetectionReport(
        threshold=threshold,
        accuracy=_ratio(caught + clean - alarms, noisy + clean),
        precision=precision,
        recall=recall,
        f1=_ratio(2 * caught, 2 * caught + alarms + (noisy - caught)),
        auroc=float(roc_auc_score(truth, values)) if both else float("nan"),
        average_precision=float(average_precision_score(truth, values)) if noisy else float("nan"),
        clean_kept=_ratio(clean - alarms, clean),
        noise_caught=recall,
    )


def mean_noise_rank(weight: ArrayLike, is_noisy: ArrayLike) -> float:
    """Mean rank of the noisy pairs by (N,) weight, descending from 1, ties averaged.

    The optimum, all n noisy pairs last, is N - (n - 1) / 2. Raises `InputError` if the lengths
    differ or a weight is NaN.
    """
    from scipy.stats import rankdata

    values, truth = _checked(weight, is_noisy)
    return float(rankdata(-values)[truth].mean()) if truth.any() else float("nan")


def _checked(score: ArrayLike, is_noisy: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(score, dtype=np.float64)
    truth = np.asarray(is_noisy, dtype=bool)
    if values.shape != truth.shape or values.ndim != 1:
        raise InputError(f"scores {values.shape} and truth {truth.shape} must be of one length")
    if np.isnan(values).any():
        raise InputError("scores must not be NaN: leave out the pairs that were not scored")
    return values, truth


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
