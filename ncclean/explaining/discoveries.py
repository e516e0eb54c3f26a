"""Find groups with more wrong pairs than comparable ones, with few false discoveries.

The values v in [0, 1] are probabilities of being wrong, themselves estimates. Notation, for group g
with n pairs: q is the mean of v, e the expected mean from comparable pairs outside.

A pair's v does not depend on noise alone: captions of one kind may score a little lower than others
without being wrong. So groups without more noise differ from e by a variance tau^2, which the bulk
of the groups shows: in the median, (q - e)^2 / (s^2 / n + tau^2) is that of a squared normal
variable, s^2 the variance of v. Few groups with a cause do not move a median.

With tau, n pairs tell as much as n' = n / (1 + n tau^2 / s^2) independent ones. The p-value is the
smaller of two bounds on how often the mean of n' independent values in [0, 1] is q or more:
Chernoff's for any values of mean e (Hoeffding, 1963), with e (1 - e) for s^2, and Bennett's (1962)
for values of variance s^2:

    exp(-n' KL(q || e)),                  KL(q || e) = q log(q/e) + (1 - q) log((1 - q)/(1 - e))
    exp(-n' s^2 h((q - e) / s^2)),        h(u) = (1 + u) log(1 + u) - u

They hold for small n and rare noise, where a normal tail would not.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

_MEDIAN = 0.45493642311957283  # of chi squared with one degree of freedom
_TINY = 1e-6
FEWEST_GROUPS = 10  # enough to estimate a spread


def heterogeneity(excess: np.ndarray, variance: np.ndarray) -> float:
    """Return tau^2 >= 0: the variance of groups' means beyond their sampling variance.

    `excess` (G,) is the mean of a group minus the expected mean, `variance` (G,) the sampling
    variance of a group's mean. 0 for fewer than 10 groups. If a group has a cause, all others are
    below the mean of the pairs outside them, which is not spread, so the median is subtracted.
    """
    if len(excess) < FEWEST_GROUPS:
        return 0.0
    squares = (excess - np.median(excess)) ** 2

    def spread(tau2: float) -> float:
        """Return the median ratio by which groups differ more than this variance explains."""
        return float(np.median(squares / (variance + tau2 + _TINY**2))) - _MEDIAN

    # Half of the numbers from -1 to 1 are within 1 of the median.
    return float(brentq(spread, 0.0, 3.0, xtol=1e-18)) if spread(0.0) > 0 else 0.0


def log_p_values(
    pairs: np.ndarray,
    mean: np.ndarray,
    expected: np.ndarray,
    variance: np.ndarray,
    tau2: np.ndarray | float,
) -> np.ndarray:
    """Return (G,) logs of bounds on the p-values of groups whose mean exceeds the expected one.

    The smaller of Chernoff's and Bennett's bound, with n' = n / (1 + n tau^2 / s^2) for n pairs;
    see the module. `variance` is s^2, of single pairs, `tau2` the variance of groups' means. 0 if
    the mean does not exceed the expected one.
    """
    q = np.clip(mean, _TINY, 1 - _TINY)
    e = np.clip(expected, _TINY, 1 - _TINY)
    largest = e * (1 - e)
    spread = np.clip(variance, _TINY, largest)
    divergence = q * np.log(q / e) + (1 - q) * np.log((1 - q) / (1 - e))
    ratio = np.maximum(q - e, 0) / spread
    bennett = spread * ((1 + ratio) * np.log1p(ratio) - ratio)
    exponent = np.maximum(
        divergence * pairs / (1 + pairs * tau2 / largest),
        bennett * pairs / (1 + pairs * tau2 / spread),
    )
    return np.where(q > e, -exponent, 0.0)


def log_threshold(log_p: np.ndarray, tests: int, rate: float) -> float:
    """Return the log p-value up to which tests are discoveries, by Benjamini and Yekutieli (2001).

    They divide the thresholds of Benjamini and Hochberg by sum 1/i, for tests of any dependence:
    groups overlap. -inf if there are no discoveries. `rate` is the false discovery rate. `tests`
    also counts those whose p-values are not given, which must be too large for discoveries.
    """
    ordered = np.sort(log_p)
    allowed = np.log(rate * np.arange(1, len(ordered) + 1)) - _log_penalty(tests)
    passing = np.flatnonzero(ordered <= allowed)
    return float(allowed[passing[-1]]) if len(passing) else -np.inf


def q_values(log_p: np.ndarray, tests: int) -> np.ndarray:
    """Return (G,) false discovery rates at which tests become discoveries, at most 1.

    `log_p` (G,) are log p-values of some of the `tests`; see `log_threshold`.
    """
    order = np.argsort(log_p, kind="stable")
    raw = log_p[order] + _log_penalty(tests) - np.log(np.arange(1, len(log_p) + 1))
    least = np.minimum.accumulate(raw[::-1])[::-1]
    values = np.empty(len(log_p))
    values[order] = np.exp(np.minimum(least, 0.0))
    return values


def _log_penalty(tests: int) -> float:
    """Return log(m sum 1/i), with the sum by Euler and Maclaurin."""
    count = max(tests, 1)
    harmonic = np.log(count) + 0.5772156649 + 1 / (2 * count)
    return float(np.log(count) + np.log(max(harmonic, 1.0)))
