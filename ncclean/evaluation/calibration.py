"""Calibration of the noise probability: reliability bins, and expected against true counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

BINS = 10


@dataclass(frozen=True)
class ReliabilityBin:
    """Pairs with a probability in [low, high), the last bin with its end.

    `predicted` is their mean probability, `observed` the share that is noisy; NaN without pairs.
    """

    low: float
    high: float
    pairs: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class SideCount:
    """Noisy pairs on one side of the cut: `expected` from the probabilities, `noisy` in truth."""

    pairs: int
    expected: float
    noisy: int
    by_kind: dict[str, int]


@dataclass(frozen=True)
class Calibration:
    """The calibration of `noise_probability`. `kept` and `dropped` are cut at 0.5.

    `expected_error` is the mean of |predicted - observed| over the pairs (ECE), `brier` the mean
    squared error of the probabilities.
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

    pairs (BINS, K + 1): number of pairs, clean ones in the first column; probability and squares
    (BINS, K + 1): sums of p and of p^2 over the same pairs; kinds: the K names.
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
