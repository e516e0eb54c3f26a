"""Estimate the share of wrong pairs in a group, from probabilities calibrated on the corpus.

A probability v holds for a pair drawn from the corpus, of which a share r is wrong. In a group with
another share it does not: in an entirely wrong group, the mean of v stays below 1. The ratio of
likelihoods holds in both,

    L = v / (1 - v) * (1 - r) / r,

if wrong pairs of the group look like other wrong pairs, and right ones like other right ones. The
share x of the group has the largest likelihood, sum log(x L + 1 - x); its interval has the shares
with likelihoods not far below (Wilks).

This is tested: the distribution of v in the group is then (1 - x) h1 + x h0, those of right and of
wrong pairs outside. If Pearson's statistic rejects this, the estimator may only be worse in the
group.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import chi2

from ncclean.base.estimates import UNKNOWN, Estimate

BINS, _LARGEST = 64, 8.0  # of the log odds of v
_GRID = np.concatenate([np.linspace(0, 0.01, 41), np.linspace(0.01, 0.99, 981)[1:-1],
                        np.linspace(0.99, 1, 41)])  # fmt: skip
_HALF = 3.841458820694124 / 2  # of chi squared at 95 %
_CENTRES = (np.arange(BINS) + 0.5) * (2 * _LARGEST / BINS) - _LARGEST
_CELLS, _PAIRS_PER_CELL = 10, 8  # at most and at least
_FEWEST_OUTSIDE = 50  # of right and of wrong pairs
_MISFIT = 0.01  # the level of the test


def bin_sql(value: str) -> str:
    """Return SQL for the bin of a probability's log odds, from 0 to `BINS` - 1.

    These are 64 equal bins from -8 to 8. `value` is SQL for the probability.
    """
    clipped = f"least(greatest({value}, 1e-6), 1 - 1e-6)"
    place = f"(ln({clipped} / (1 - {clipped})) + {_LARGEST}) * {BINS / (2 * _LARGEST)}"
    return f"least(greatest(floor({place}), 0), {BINS - 1})::INT"


def rate_of(counts: np.ndarray, rate: float, tau2: float = 0.0) -> Estimate:
    """Estimate a group's share of wrong pairs by maximum likelihood, with a 95 % interval.

    `counts` (BINS,) are its pairs by log odds of being wrong (see `bin_sql`), calibrated on a
    corpus with the share `rate`. `tau2`, the variance of groups' means without a cause, widens the
    interval. Unknown without pairs.
    """
    if not counts.sum():
        return UNKNOWN
    ratios = _ratios(rate)
    used = counts > 0
    terms = np.log1p(_GRID[:, None] * (ratios[None, used] - 1) + 1e-300)
    likelihood = terms @ counts[used]
    best = int(likelihood.argmax())
    inside = np.flatnonzero(likelihood >= likelihood[best] - _HALF)
    value = float(_GRID[best])
    spread = 1.96 * math.sqrt(tau2)
    low = value - math.hypot(value - _GRID[inside[0]], spread)
    high = value + math.hypot(_GRID[inside[-1]] - value, spread)
    return Estimate(value, max(low, 0.0), min(high, 1.0))


def fits(counts: np.ndarray, outside: np.ndarray, rate: float) -> bool:
    """Check whether the scores of a group look like a mixture of right and wrong pairs outside it.

    `counts` and `outside` (BINS,) are pairs by log odds of being wrong (see `bin_sql`), `rate` is
    the corpus's share of wrong pairs. Pearson's test at 1 %. False if there are too few pairs to
    tell.
    """
    pairs, share = counts.sum(), rate_of(counts, rate).value
    right = outside / (1 + np.exp(_CENTRES))
    kinds, parts = np.stack([right, outside - right]), np.array([1 - share, share])
    sizes = kinds.sum(axis=1)
    cells = int(min(_CELLS, pairs // _PAIRS_PER_CELL))
    if cells < 3 or (sizes < _FEWEST_OUTSIDE).any():
        return False
    densities = kinds * (parts / sizes)[:, None]
    density = densities.sum(axis=0)
    cell = ((np.cumsum(density) - density / 2) * cells).astype(int).clip(0, cells - 1)
    expected = pairs * np.bincount(cell, density, cells)
    # Expected counts come from the pairs outside.
    doubt = [np.bincount(cell, one * part / size, cells)
             for one, part, size in zip(densities, parts, sizes, strict=True)]  # fmt: skip
    variance = np.maximum(expected + pairs**2 * np.sum(doubt, axis=0), 1e-9)
    statistic = ((np.bincount(cell, counts, cells) - expected) ** 2 / variance).sum()
    return bool(chi2.sf(statistic, max(cells - 2, 1)) >= _MISFIT)


def _ratios(rate: float) -> np.ndarray:
    """Return (BINS,) ratios of likelihoods, wrong to right, for this share of wrong pairs."""
    rate = min(max(rate, 1e-6), 1 - 1e-6)
    ratios: np.ndarray = np.exp(_CENTRES - math.log(rate / (1 - rate)))
    return ratios
