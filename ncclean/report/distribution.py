"""The distributions of observed, mismatched and matched cosines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ncclean.report.table import ScoreTable
from ncclean.scoring.null import BINS
from ncclean.storage.run_facts import RunFacts

_TAIL = 2e-4  # share of the pairs that may lie beyond each end of the axis
_FEWEST_BINS, _MOST_BINS = 16, 144


@dataclass(frozen=True)
class CosineDistribution:
    """Pairs per bin of the cosine; all arrays have one value for each of K bins.

    `edges` (K + 1,) are on a grid of 1/2048. `mismatched` is the expected number of mismatched
    pairs: noise rate times the null or, in a table without the null, the sum of
    `noise_probability`; `matched` is the rest, at least 0. Both are None if the table has neither.
    `probability` is the mean `noise_probability` of the pairs in a bin, nan in an empty one.
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
        """Width of a bin, in cosine."""
        return float(self.edges[1] - self.edges[0])

    @property
    def centres(self) -> np.ndarray:
        return np.asarray((self.edges[:-1] + self.edges[1:]) / 2)


def cosine_distribution(table: ScoreTable) -> CosineDistribution | None:
    """The histogram of cosines of a table's scored pairs; None if there are none."""
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
    # What an audit adds are near misses, which do not follow the null.
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
    """Median of a histogram of (4096,) counts over [-1, 1], interpolated within its bin."""
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
