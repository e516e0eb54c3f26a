"""The probability that a pair is mismatched, from the corpus's own known mismatches.

The off-diagonal cosines of the blocks are millions of pairs known not to belong together, so the
distribution of mismatched pairs under this estimator and this corpus (the null) is known almost
exactly. From it follow the share of mismatched pairs, as in `ncclean.scoring.noise_rate`, and the
probability for one pair, as Efron's local false discovery rate.

Assumption: a mismatched pair looks like a random pair. An almost right caption does not, and counts
as matched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclean.base.estimates import Estimate, read_count
from ncclean.scoring.double import doubled
from ncclean.scoring.noise_rate import cell_counts, noise_rate

if TYPE_CHECKING:  # a report reads histograms without it, and loading it takes seconds
    import torch

BINS = 4096
_EDGES = np.linspace(-1.0, 1.0, BINS + 1)
_CENTRES = (_EDGES[:-1] + _EDGES[1:]) / 2
_WIDTH = 2.0 / BINS
SUM_UNIT = 2.0**-16
# The noise rate at which scores are compared: at the corpus's own, often small rate, a few pairs
# decide.
_COMPARED_AT = 0.4


@dataclass
class Histogram:
    """Counts over 4,096 (`BINS`) equal bins on [-1, 1], with the sum of the values.

    The sum is in whole units of 2^-16 (`SUM_UNIT`), so histograms add up to the same in any order.
    """

    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    units: int = 0

    @classmethod
    def of(cls, values: torch.Tensor) -> Histogram:
        """Count cosines in the bins of a histogram; rounding beyond +-1 falls into outer bins."""
        return cls.with_sums(bin_counts(values.detach().float()), values.detach().float())

    @classmethod
    def with_sums(cls, counts: torch.Tensor, sums: torch.Tensor) -> Histogram:
        """Build a histogram from (BINS,) counts and any partial sums of the counted values."""
        units = round(float(doubled(sums).sum()) / SUM_UNIT)
        return cls(counts.cpu().numpy().astype(np.int64), units)

    def __iadd__(self, other: Histogram) -> Histogram:
        self.counts = self.counts + other.counts
        self.units += other.units
        return self

    def __isub__(self, other: Histogram) -> Histogram:
        self.counts = self.counts - other.counts
        self.units -= other.units
        return self

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        return self.units * SUM_UNIT / self.size if self.size else math.nan


def bin_counts(values: torch.Tensor) -> torch.Tensor:
    """Count values in 4,096 (`BINS`) equal bins on [-1, 1]; others fall into the outer bins."""
    import torch

    # Rounding towards zero is down, as values below the first bin are clamped before.
    index = values.add(1).mul_(BINS / 2).clamp_(0, BINS - 1).int()
    return torch.bincount(index.flatten(), minlength=BINS)


@dataclass(frozen=True)
class GroupRate:
    """The noise rate of a group of `--calibrate-by`, unknown if no null could be fitted.

    `own_null` is false for a small group: its noise probabilities, and its rate, use the known
    mismatches of the whole corpus. `group` is None for the pairs without a label.
    """

    group: str | None
    pairs: int
    noise_rate: Estimate
    own_null: bool

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> GroupRate:
        """Read the noise rate of a group from a table's metadata.

        Raises `KeyError` or `ValueError` for other fields.
        """
        rate = Estimate.of_fields(fields, "noise_rate")
        group, pairs, own_null = fields["group"], fields["pairs"], fields["own_null"]
        if not isinstance(group, str | None) or not isinstance(own_null, bool):
            raise ValueError(f"not a group: {group!r}")
        return cls(group, read_count(pairs), rate, own_null)


@dataclass(frozen=True)
class NullModel:
    """The distribution of a score over mismatched pairs (the null), and what follows from it.

    `separation` is the estimated AUROC of matched against mismatched pairs. `expected_error` is the
    share of pairs expected on the wrong side of a noise probability of one half; `overlap` is that
    share if 40 % of the pairs were mismatched, which compares scores whatever the noise rate.
    `probability_table` holds the noise probability at the bin centres, `tail_table` the upper tail
    of the null at the bin edges; both are interpolated in between.
    """

    noise_rate: Estimate
    separation: float
    expected_error: float
    overlap: float
    probability_table: np.ndarray
    tail_table: np.ndarray

    @classmethod
    def fit(
        cls,
        diagonal_histogram: Histogram | np.ndarray,
        off_diagonal_histogram: Histogram | np.ndarray,
        means: Sequence[Histogram | np.ndarray] = (),
        may_be_lower: bool = False,
        at_hand: bool = True,
    ) -> NullModel:
        """Fit the null model to histograms of the scores of pairs and of known mismatches.

        Both are counts over 4,096 equal bins on [-1, 1], summed over all blocks, as a `Histogram`
        or an array. `means` are histograms of the mean mismatched score of each image and of each
        caption, which show how precisely the null is known. `may_be_lower` and `at_hand` are passed
        to `ncclean.scoring.noise_rate.noise_rate`.

        Raises `ValueError` if one of the first two is empty or has another number of bins.
        """
        observed, null = _counts(diagonal_histogram), _counts(off_diagonal_histogram)
        if observed.sum() == 0 or null.sum() == 0:
            raise ValueError("a null model needs at least one pair and one known mismatch")
        doubt = _median_doubt(observed.sum(), null, [_counts(row) for row in means])
        fitted = noise_rate(cell_counts(observed, null, _EDGES), doubt, may_be_lower, at_hand)
        ratio = _density_ratio(observed, null)
        table = (fitted.rate.value * ratio).clip(0.0, 1.0)
        return cls(
            noise_rate=fitted.rate,
            separation=fitted.separation,
            expected_error=float(np.minimum(table, 1 - table) @ observed / observed.sum()),
            overlap=_overlap(ratio, fitted.rate.value, observed / observed.sum()),
            probability_table=table,
            tail_table=1.0 - np.concatenate([[0.0], np.cumsum(null) / null.sum()]),
        )

    def agrees_with(self, other: NullModel) -> bool:
        """Check whether the noise rates of two null models have overlapping intervals."""
        low = max(self.noise_rate.low, other.noise_rate.low)
        return low <= min(self.noise_rate.high, other.noise_rate.high)

    def noise_probability(self, similarity: torch.Tensor) -> torch.Tensor:
        """Return the probability that a pair of score s is mismatched: noise_rate f0(s) / f(s).

        f0 is the density of known mismatches, f that of the pairs. It never increases with s.
        """
        return _interpolate(similarity, _CENTRES, self.probability_table)

    def p_value(self, similarity: torch.Tensor) -> torch.Tensor:
        """Return 1 - F0(s), the share of known mismatches with a score of at least s."""
        return _interpolate(similarity, _EDGES, self.tail_table)


def _counts(histogram: Histogram | np.ndarray | torch.Tensor) -> np.ndarray:
    counts = histogram.counts if isinstance(histogram, Histogram) else np.asarray(histogram)
    if counts.shape != (BINS,):
        raise ValueError(f"a histogram must have {BINS} bins on [-1, 1], got {counts.shape}")
    return counts.astype(np.float64)


def _interpolate(values: torch.Tensor, at: np.ndarray, table: np.ndarray) -> torch.Tensor:
    import torch

    out = np.interp(values.detach().cpu().double().numpy(), at, table)
    return torch.as_tensor(out, dtype=torch.float32).to(values.device)


def _median_doubt(pairs: float, null: np.ndarray, means: Sequence[np.ndarray]) -> float:
    """Return the standard error of the share of all mismatches below the seen ones' median.

    Mismatches that share an image or a caption are not independent: `pairs` images and as many
    captions tell far less than their number of mismatches suggests. `means` are histograms of the
    mean cosine of each image, and of each caption. If two mismatches of one image have correlation
    rho, both lie below the median with probability 1/4 + asin(rho) / 2 pi (for normal cosines), and
    n images add asin(rho) / 2 pi / n to the variance of the share; captions alike.
    """
    spread = _variance(null)
    per_image = null.sum() / pairs  # mismatches of an image
    variance = 0.25 / null.sum()
    for histogram in means:
        if histogram.sum() < 2 or spread <= 0:
            continue
        # A mean of few scatters by itself.
        shared = (_variance(histogram) - spread / per_image) / spread
        variance += math.asin(min(max(shared, 0.0), 1.0)) / (2 * math.pi) / histogram.sum()
    return math.sqrt(variance)


def _variance(counts: np.ndarray) -> float:
    """The variance of the values in a histogram."""
    mean = (counts * _CENTRES).sum() / counts.sum()
    return float((counts * (_CENTRES - mean) ** 2).sum() / counts.sum())


def _overlap(ratio: np.ndarray, rate: float, observed: np.ndarray) -> float:
    """sum min(.4 f0, .6 f1), with f1 = (f - rate f0) / (1 - rate) the density of matched pairs.

    `ratio` is f0 / f, `observed` the share of the pairs in each bin. Without matched pairs nothing
    is separable.
    """
    if rate >= 1:
        return min(_COMPARED_AT, 1 - _COMPARED_AT)
    matched = (1 - rate * ratio).clip(0.0) / (1 - rate)
    return float(np.minimum(_COMPARED_AT * ratio, (1 - _COMPARED_AT) * matched) @ observed)


def _density_ratio(observed: np.ndarray, null: np.ndarray) -> np.ndarray:
    """Return (BINS,) f0 / f at bin centres, smoothed alike, isotonic: noise probability by rate.

    Ratios above 1 / rate are chance and balance those below: if they were cut off before the
    isotonic regression, which averages them, mismatched pairs would stay at .8 to .95 where few
    were seen.
    """
    from scipy.optimize import isotonic_regression

    bandwidth = _bandwidth(observed)
    f, f0 = _smooth(observed, bandwidth), _smooth(null, bandwidth)
    # Without observations there is no ratio, and isotonic regression bridges the gap. Its
    # mismatches count for the bin below: otherwise a few distant pairs would share some of them.
    seen = np.flatnonzero(f > 1e-3 / (observed.sum() * _WIDTH * BINS))
    below = np.searchsorted(seen, np.arange(BINS), side="right") - 1
    f0 = np.bincount(below.clip(0), weights=f0, minlength=len(seen))
    fit = isotonic_regression(f0 / f[seen], weights=f[seen], increasing=False)
    return np.asarray(np.interp(_CENTRES, _CENTRES[seen], fit.x))


def _bandwidth(counts: np.ndarray) -> float:
    """Return the Gaussian kernel's width by Silverman's rule, in cosine; at least one bin."""
    pairs = counts.sum()
    mean = (counts * _CENTRES).sum() / pairs
    deviation = math.sqrt(max((counts * (_CENTRES - mean) ** 2).sum() / pairs, 0.0))
    quartiles = np.interp([0.25, 0.75], np.cumsum(counts) / pairs, _CENTRES)
    spread = min(deviation, (quartiles[1] - quartiles[0]) / 1.349) or deviation
    return float(max(0.9 * spread * pairs**-0.2, _WIDTH))


def _smooth(counts: np.ndarray, bandwidth: float) -> np.ndarray:
    """Gaussian kernel density on the bins, with the mass at +-1 reflected back."""
    from scipy.ndimage import gaussian_filter1d

    density = counts / (counts.sum() * _WIDTH)
    return np.asarray(gaussian_filter1d(density, bandwidth / _WIDTH, mode="reflect", truncate=5.0))
