"""Compare the weights and beliefs that the methods give to each pair with the truth and each other.

A belief is one number per pair. It is larger where the method takes the pair to be cleaner, so that
AUROCs and rank correlations can be compared across methods: OSA's weight, NCU's confidence and
split, DisNCL's filter, one minus the noise probability. The positive weight of the Bayesian method
enters unchanged: it does not measure cleanliness, and its AUROC is below 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score


@dataclass(frozen=True)
class BeliefReport:
    """`auroc` is that of separating clean from noisy pairs; NaN without a truth for both."""

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
    """Compare (N,) beliefs, NaN where missing, with the (N,) truth: 1, 0, or -1 if unknown."""
    reports = []
    for name, belief in beliefs.items():
        comparable = (is_noisy >= 0) & np.isfinite(belief)
        values, noisy = belief[comparable], is_noisy[comparable] == 1
        both = noisy.any() and not noisy.all()
        auroc = float(roc_auc_score(noisy, -values)) if both else math.nan
        reports.append(BeliefReport(name, auroc, _mean(values[~noisy]), _mean(values[noisy])))
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
