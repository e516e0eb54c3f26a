"""What each method believes about a pair, beside the truth and beside the others.

A belief is a number per pair, here always larger where the method holds the pair to be cleaner, so
that AUROCs and rank correlations can be read across methods: OSA's weight, NCU's confidence and
split, DisNCL's filter, one minus the noise probability. The positive weight of the Bayesian method
is shown as it is: it is no belief about cleanliness, and its AUROC below 1/2 says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from ncclean.evaluation.noise_detection import detection_report


@dataclass(frozen=True)
class BeliefReport:
    """`auroc` is that of telling clean from noisy pairs; NaN without a truth or with ties only."""

    name: str
    auroc: float
    clean_mean: float
    noisy_mean: float


@dataclass(frozen=True)
class WeightReport:
    """`correlation[a][b]` is Spearman's, over the pairs that have both beliefs."""

    pairs: int
    noisy: int
    beliefs: list[BeliefReport]
    correlation: dict[str, dict[str, float]]


def compare_beliefs(beliefs: Mapping[str, np.ndarray], is_noisy: np.ndarray) -> WeightReport:
    """(N,) beliefs by name, NaN where there is none; (N,) truth as 1, 0 or -1 for unknown."""
    reports = []
    for name, values in beliefs.items():
        known = (is_noisy >= 0) & np.isfinite(values)
        noisy = is_noisy[known] == 1
        both = noisy.any() and not noisy.all()
        auroc = detection_report(-values[known], noisy, 0.0).auroc if both else math.nan
        reports.append(
            BeliefReport(name, auroc, _mean(values[known][~noisy]), _mean(values[known][noisy]))
        )
    correlation = {
        a: {b: _rank_correlation(beliefs[a], beliefs[b]) for b in beliefs} for a in beliefs
    }
    return WeightReport(len(is_noisy), int((is_noisy == 1).sum()), reports, correlation)


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    both = np.isfinite(a) & np.isfinite(b)
    if both.sum() < 2 or np.ptp(a[both]) == 0 or np.ptp(b[both]) == 0:
        return math.nan
    return float(spearmanr(a[both], b[both]).statistic)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan
