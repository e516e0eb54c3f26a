"""The share of wrong pairs in a group, from probabilities that were calibrated on the corpus.

A probability v of a pair holds where a pair is drawn from the corpus, of which a share r is wrong.
In a group with another share, it does not: of a group that is wrong throughout, the mean of v stays
below 1. What holds in both is the ratio of likelihoods,

    L = v / (1 - v) * (1 - r) / r,

if wrong pairs of the group look like other wrong pairs, and right ones like other right ones. The
share x of the group is that of largest likelihood, sum log(x L + 1 - x); its interval are the
shares whose likelihood is not far below (Wilks).
"""

from __future__ import annotations

import math

import numpy as np

from ncclean.estimates import UNKNOWN, Estimate

BINS, _LARGEST = 64, 8.0  # of the log odds of v
_GRID = np.concatenate([np.linspace(0, 0.01, 41), np.linspace(0.01, 0.99, 981)[1:-1],
                        np.linspace(0.99, 1, 41)])  # fmt: skip
_HALF = 3.841458820694124 / 2  # of chi squared at 95 %


def bin_sql(value: str) -> str:
    """SQL for the bin of log odds that a probability falls into, 0 to `BINS` - 1."""
    clipped = f"least(greatest({value}, 1e-6), 1 - 1e-6)"
    place = f"(ln({clipped} / (1 - {clipped})) + {_LARGEST}) * {BINS / (2 * _LARGEST)}"
    return f"least(greatest(floor({place}), 0), {BINS - 1})::INT"


def rate_of(counts: np.ndarray, rate: float, tau2: float = 0.0) -> Estimate:
    """The share of wrong pairs of a group, from (BINS,) counts of its pairs by log odds.

    `rate` is that of the corpus, `tau2` the variance by which groups' means differ without noise:
    the interval is wider by that. Unknown without pairs.
    """
    if not counts.sum():
        return UNKNOWN
    rate = min(max(rate, 1e-6), 1 - 1e-6)
    centres = (np.arange(BINS) + 0.5) * (2 * _LARGEST / BINS) - _LARGEST
    ratios = np.exp(centres - math.log(rate / (1 - rate)))
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
