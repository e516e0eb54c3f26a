"""Estimate the share of mismatched pairs in a corpus from its known mismatches.

A pair's cosine as a quantile of the known mismatches, x = Phi^-1(F0(cosine)), is standard normal
for mismatched pairs. For matched pairs it is assumed to be sinh-arcsinh normal (Jones and Pewsey
2009), P(x <= e) = Phi(sinh(asinh((e - mu) / sigma) - delta)): on real photographs it fits counts of
thousands of pairs about as well as chance allows. The share pi is fitted to the pairs as given,
together with (mu, sigma, delta), by maximum likelihood in cells of x.

Counting the pairs below the mismatches' median, as Storey's estimate does, assumes that hardly any
matched pair is there. With a weak estimator many are.

The fit gives the share q of pairs that score like mismatches. They may include matched pairs, with
vague captions or images unknown to the estimator, and no sample distinguishes these from mismatched
ones: q is an upper bound. How many there may be follows from how well the estimator does otherwise.
With A its AUROC on matched pairs, at most (2 (1 - A))^2 of them score like mismatches in all clean
corpora that were measured: all at an A of 1/2, a fifth at .77, next to none at .99. The lower end
of the interval assumes that many; the estimate itself a sixteenth of that, about the mean over
those corpora.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from ncclean.base.estimates import Estimate

_CELL_EDGES = np.linspace(-3.0, 2.5, 56)
# For all measured CLIPs, log sigma is about this times mu, and delta about this: as an estimator
# learns, the matched cosines move away from the others and scatter less in their quantiles. Normal
# priors, which a few thousand pairs outweigh.
_SIGMA_SLOPE, _SIGMA_DEVIATION = -0.18, 0.18
_LARGEST_MU = 4.0  # beyond, nearly all matched pairs are in the last cell
_DELTA, _DELTA_DEVIATION = 0.1, 0.2
# If all pairs look mismatched, either they are, or the estimator knows nothing. Below this mu the
# second becomes less likely: .5 would be an AUROC of .64.
_LEAST_MU, _MU_DEVIATION = 1.0, 0.3
# The .95 quantile of one degree of freedom is 3.84; this is larger, by measurement, for imperfect
# shapes.
_DEVIANCE = 5.5
# The part of the mismatched pairs' sampling variance taken off an interval for the corpus at hand.
# The estimate and the share at hand covary by all of it; the rest is for shapes that do not fit.
_AT_HAND = 0.9
# Parts of the most matched pairs that may score like mismatches: for the estimate, for the lower
# end.
_VAGUE_MEAN, _VAGUE_MOST = 1 / 16, 1.0
# How low very low pairs are, and by how many standard errors they may exceed known mismatches.
_LOW, _EXCESS = -1.5, 4.0
# Values of x above which all is one cell.
_CUTS = (2.5, 1.5, 0.8, 0.0)
# (4, 5) shapes of weak and of strong estimators.
_STARTS = np.array(
    [(mu, _SIGMA_SLOPE * min(mu, _LARGEST_MU), _DELTA, 0.0, 0.0) for mu in (0.6, 1.2, 2.5, 5.0)]
)
_COARSE, _GRID = 7, 24
_STEPS = 60
_LITTLE = 1e-3  # of the log-likelihood
_PART = 1e-2  # of the gap to the best: a hundred such gains would not reach it
_MOST_DAMPING = 1e3
# If this share may be mismatched, hardly any pair is recognised as matched. Then nothing says that
# matched pairs look different from mismatched ones, and any share is possible.
_NEXT_TO_ALL = 0.98
_FEW = 1e-5  # of an angle: no corpus distinguishes shares this close


@dataclass(frozen=True)
class NoiseRate:
    """The estimated share of mismatched pairs, and how well the score separates them.

    `separation` is the AUROC, the probability that a matched pair has a higher score than a
    mismatched one, if the rate is right.
    """

    rate: Estimate
    separation: float


def noise_rate(
    observed: np.ndarray, doubt: float, may_be_lower: bool = False, at_hand: bool = True
) -> NoiseRate:
    """Estimate the share of mismatched pairs, with an interval, from (57,) counts of pairs.

    `observed` counts pairs between quantiles of the known mismatches (see `cell_counts`), on a
    standard normal scale x. Pairs are a mixture of mismatched ones (standard normal) and matched
    ones (sinh-arcsinh normal). The interval holds the shares whose profile likelihood is within a
    deviance of 5.5 of the best; if the shape does not fit, deviances are divided by Pearson's
    statistic per degree of freedom. `doubt` is the standard error of the share of mismatches below
    the known ones' median: it allows for a shift of x by `doubt` sqrt(2 pi). With `at_hand`, nine
    tenths of the sampling variance are taken off: the rate is that of these pairs, not of the
    population they sample.

    The low end matters, and a shape that does not fit above must not decide there. So cells above a
    cut are merged, and of several cuts the one with the shortest interval is used. An interval that
    reaches .98 becomes [0, 1]. The lower end allows for matched pairs that score like mismatched
    ones (see `without_vague`). If mismatched pairs `may_be_lower` than the known ones, and more
    pairs score very low than the known mismatches explain, the lower end is at most the share below
    the median.
    """
    counts = np.asarray(observed, dtype=np.float64)
    estimates = [_with_cut(_Fit(counts, doubt, cut), at_hand) for cut in _CUTS]
    rate, low, high = min(
        estimates, key=lambda ends: math.asin(ends[2] ** 0.5) - math.asin(ends[1] ** 0.5)
    )
    as_given = _separation(counts, 0.0)
    low = without_vague(low, as_given, _VAGUE_MOST)
    if may_be_lower:
        low = min(low, _low_pairs(counts, rate, doubt))
    rate = without_vague(rate, as_given, _VAGUE_MEAN)
    if high > _NEXT_TO_ALL:
        low, high = 0.0, 1.0
    return NoiseRate(Estimate(rate, low, high), _separation(counts, rate))


def _separation(counts: np.ndarray, rate: float) -> float:
    """The probability that a matched pair is above a mismatched one.

    The mismatched share of the pairs as given is above one half of the time.
    """
    mismatched = _mismatched_cells()
    below = np.cumsum(mismatched) - mismatched / 2
    as_given = float((counts * below).sum() / counts.sum())
    return min(max((as_given - rate / 2) / (1 - rate), 0.5), 1.0) if rate < 1 else 0.5


def without_vague(alike: float, as_given: float, part: float) -> float:
    """Return the noise rate, allowing for matched pairs that score like mismatched ones.

    `alike` is the share of pairs that score like mismatches, `as_given` the probability that a pair
    as given scores above a mismatched one. At a rate p, the AUROC of matched pairs is A = (as_given
    - p/2) / (1 - p), and a share (alike - p) / (1 - p) of them scores like mismatches. That share
    is assumed to be `part` times (2 (1 - A))^2. With b = 2 (1 - as_given), p is the smaller root of
    (1 - part) p^2 - (1 + alike - 2 part b) p + alike - part b^2.
    """
    b = 2 * (1 - as_given)
    rest, slope = alike - part * b * b, 1 + alike - 2 * part * b
    if rest <= 0:
        return 0.0
    root = math.sqrt(max(slope * slope - 4 * (1 - part) * rest, 0.0))
    return min(2 * rest / (slope + root), alike)


def _low_pairs(counts: np.ndarray, rate: float, doubt: float) -> float:
    """The share of pairs below the mismatches' median if too many score very low, else 1."""
    pairs, mismatched = counts.sum(), _mismatched_cells()
    cells = int(np.searchsorted(_CELL_EDGES, _LOW + 1e-9))
    expected = rate * mismatched[:cells].sum()
    error = math.sqrt(expected / pairs + (rate * doubt) ** 2) + 1 / pairs
    if counts[:cells].sum() / pairs - expected <= _EXCESS * error:
        return 1.0
    return float(counts[: int(np.searchsorted(_CELL_EDGES, 1e-9))].sum() / pairs)


def _mismatched_cells() -> np.ndarray:
    """(57,) shares of mismatched pairs in the cells."""
    cells: np.ndarray = _cells(ndtr(_CELL_EDGES)[None], 1.0)[0]
    return cells


def _with_cut(fit: _Fit, at_hand: bool) -> tuple[float, float, float]:
    """Return rate and interval with one cut; shrink the grid until the interval covers half of it.

    Shapes start from the best ones at neighbouring shares of a coarser grid.
    """
    low, high = 0.0, math.pi / 2
    at = np.linspace(low, high, _COARSE)
    _, shapes = fit.profile(np.sin(at) ** 2, np.repeat(_STARTS[None], _COARSE, axis=0))
    while True:
        angles = np.linspace(low, high, _GRID)
        after = np.searchsorted(at, angles).clip(1, len(at) - 1)
        starts = np.stack([shapes[after - 1], shapes[after]], axis=1)
        at = angles
        likelihood, shapes = fit.profile(np.sin(angles) ** 2, starts)
        best = int(likelihood.argmax())
        misfit = fit.misfit(np.sin(angles[best]) ** 2, shapes[best])
        deviance = 2 * (likelihood[best] - likelihood) / misfit
        inside = np.flatnonzero(deviance <= _DEVIANCE)
        first, last = max(inside[0] - 1, 0), min(inside[-1] + 1, _GRID - 1)
        if last - first >= _GRID // 2 or angles[last] - angles[first] < _FEW:
            break
        low, high = angles[first], angles[last]
    rate = math.sin(_summit(angles, likelihood)) ** 2
    ends = [_crossing(angles, deviance, inside[0], -1), _crossing(angles, deviance, inside[-1], 1)]
    low, high = (math.sin(end) ** 2 for end in ends)
    if at_hand:
        low, high = (_of_corpus(rate, end, fit.pairs) for end in (low, high))
    return rate, min(low, rate), max(high, rate)


def cell_counts(observed: np.ndarray, null: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return (57,) numbers of pairs between fixed quantiles of the known mismatches.

    `observed` counts the pairs and `null` the known mismatches between `edges`; both are assumed to
    be spread evenly within a bin.
    """
    cumulative = np.concatenate([[0.0], np.cumsum(null) / null.sum()])
    rises = np.flatnonzero(np.diff(cumulative) > 0)
    invertible = np.union1d(rises, rises + 1)
    cuts = np.interp(ndtr(_CELL_EDGES), cumulative[invertible], edges[invertible])
    below = np.interp(cuts, edges, np.concatenate([[0.0], np.cumsum(observed)]))
    return np.diff(np.concatenate([[0.0], below, [observed.sum()]]))


def _summit(angles: np.ndarray, likelihood: np.ndarray) -> float:
    """Return the angle of the largest likelihood, by a parabola through it and its neighbours."""
    best = int(likelihood.argmax())
    if best in (0, len(angles) - 1):
        return float(angles[best])
    before, at, after = likelihood[best - 1 : best + 2]
    bend = before - 2 * at + after
    part = 0.0 if bend >= 0 else 0.5 * (before - after) / bend
    return float(angles[best] + part * (angles[1] - angles[0]))


def _crossing(angles: np.ndarray, deviance: np.ndarray, inside: int, step: int) -> float:
    """Return the angle at which the deviance passes its limit, beside the outermost one inside."""
    outside = inside + step
    if not 0 <= outside < len(angles):
        return float(angles[inside])
    part = (_DEVIANCE - deviance[inside]) / (deviance[outside] - deviance[inside])
    return float(angles[inside] + part * (angles[outside] - angles[inside]))


def _of_corpus(rate: float, end: float, pairs: float) -> float:
    """Convert an interval's end for the sampled population to one for the corpus at hand."""
    distance = (end - rate) ** 2
    sampled = _AT_HAND * _DEVIANCE * end * (1 - end) / pairs
    return rate + math.copysign(math.sqrt(max(distance - sampled, distance / 10)), end - rate)


class _Fit:
    """The likelihood of counts in cells; shapes are (B, 5): mu, log sigma, delta, and the null's.

    The known mismatches may be off by a shift a and a factor exp(b), for which `doubt` is the
    scale of a normal prior.
    """

    def __init__(self, counts: np.ndarray, doubt: float, cut: float) -> None:
        below = int(np.searchsorted(_CELL_EDGES, cut + 1e-9))
        self._edges = _CELL_EDGES[:below]
        self._counts = np.append(counts[:below], counts[below:].sum())
        self.pairs = float(counts.sum())
        shift = max(doubt * math.sqrt(2 * math.pi), 1e-4)
        self._deviations = np.array([_DELTA_DEVIATION, shift, shift / math.sqrt(2)])
        self._means = np.array([_DELTA, 0.0, 0.0])

    def profile(self, shares: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n,) penalised log-likelihoods at shares with the best shape for each, and (n, 5) these.

        Fisher scoring with Levenberg's damping, from (n, m, 5) shapes, all at once.
        """
        several = starts.shape[1]
        shares, shapes = np.repeat(shares, several), starts.reshape(-1, 5).copy()
        damping = np.full(len(shares), 1e-3)
        value, gradient, information = self._scored(shares, shapes)
        active = np.arange(len(shares))
        for _ in range(_STEPS):
            damped = information[active] * (1 + damping[active, None, None] * np.eye(5))
            step = np.linalg.solve(damped, gradient[active, :, None])[:, :, 0]
            tried = shapes[active] + np.clip(step, -1.0, 1.0)
            scored = self._scored(shares[active], tried)
            better = scored[0] >= value[active]
            gain = scored[0] - value[active]
            moved = active[better]
            shapes[moved] = tried[better]
            value[moved], gradient[moved], information[moved] = (one[better] for one in scored)
            damping[active] *= np.where(better, 0.2, 5.0)
            least = np.maximum(_LITTLE, _PART * (value.max() - value[active]))
            active = active[np.where(better, gain > least, damping[active] < _MOST_DAMPING)]
            if not len(active):
                break
        by_share = value.reshape(-1, several)
        best = by_share.argmax(axis=1) + np.arange(len(by_share)) * several
        return value[best], shapes[best]

    def misfit(self, share: float, shape: np.ndarray) -> float:
        """Pearson's statistic per degree of freedom, at least 1."""
        mismatched, matched, _ = _with_slopes(self._edges, shape[None])
        expected = self.pairs * (share * mismatched + (1 - share) * matched)[0]
        used = expected > 5
        statistic = ((self._counts - expected)[used] ** 2 / expected[used]).sum()
        return max(float(statistic) / max(int(used.sum()) - 5, 1), 1.0)

    def _scored(
        self, shares: np.ndarray, shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (B,) penalised log-likelihoods, (B, 5) gradients, and (B, 5, 5) information."""
        mismatched, matched, slopes = _with_slopes(self._edges, shapes)
        share = shares[:, None]
        p = np.maximum(share * mismatched + (1 - share) * matched, 1e-14)
        slopes[:, :3] *= (1 - share)[:, :, None]
        slopes[:, 3:] *= share[:, :, None]
        value = (self._counts * np.log(p)).sum(axis=1)
        gradient = np.einsum("bkc,bc->bk", slopes, self._counts / p)
        information = np.einsum("bkc,blc->bkl", slopes, slopes * (self.pairs / p)[:, None])
        mu, log_sigma = shapes[:, 0], shapes[:, 1]
        off = (log_sigma - _SIGMA_SLOPE * np.minimum(mu, _LARGEST_MU)) / _SIGMA_DEVIATION
        value -= off**2 / 2
        direction = np.zeros((len(shapes), 5))
        direction[:, 0] = np.where(mu < _LARGEST_MU, -_SIGMA_SLOPE, 0.0)
        direction[:, 1] = 1.0
        gradient -= (off / _SIGMA_DEVIATION)[:, None] * direction
        information += direction[:, :, None] * direction[:, None] / _SIGMA_DEVIATION**2
        lacking = np.minimum(mu - _LEAST_MU, 0.0) / _MU_DEVIATION
        value -= lacking**2 / 2
        gradient[:, 0] -= lacking / _MU_DEVIATION
        information[:, 0, 0] += (lacking < 0) / _MU_DEVIATION**2
        rest = (shapes[:, 2:] - self._means) / self._deviations
        value -= (rest**2).sum(axis=1) / 2
        gradient[:, 2:] -= rest / self._deviations
        information[:, [2, 3, 4], [2, 3, 4]] += 1 / self._deviations**2
        information[:, range(5), range(5)] += 1e-6
        return value, gradient, information


def _with_slopes(
    edges: np.ndarray, shapes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (B, 57) cell masses of mismatched and of matched pairs, and (B, 5, 57) slopes.

    The slopes of the first three parameters are of the matched pairs, of the last two of the
    mismatched.
    """
    mu, log_sigma, delta, shift, spread = (parameter[:, None] for parameter in shapes.T)
    sigma = np.exp(np.clip(log_sigma, -4.0, 3.0))
    z = (edges - mu) / sigma
    w = np.clip(np.arcsinh(z) - delta, -4.0, 4.0)
    normal = np.sinh(w)
    to_w = _density(normal) * np.cosh(w)
    to_z = to_w / np.sqrt(1 + z * z)
    factor = np.exp(-np.clip(spread, -1.0, 1.0))
    y = (edges - shift) * factor
    to_y = _density(y)
    slopes = (-to_z / sigma, -to_z * z, -to_w, -to_y * factor, -to_y * y)
    return (
        _cells(ndtr(y), 1.0),
        _cells(ndtr(normal), 1.0),
        np.stack([_cells(slope, 0.0) for slope in slopes], axis=1),
    )


def _density(values: np.ndarray) -> np.ndarray:
    """The density of the standard normal distribution."""
    density: np.ndarray = np.exp(-0.5 * values * values) / math.sqrt(2 * math.pi)
    return density


def _cells(at_edges: np.ndarray, end: float) -> np.ndarray:
    """Return (B, 57) differences of values at the edges, 0 before them and `end` after."""
    cells = np.empty((len(at_edges), at_edges.shape[1] + 1))
    cells[:, 0], cells[:, -1] = at_edges[:, 0], end - at_edges[:, -1]
    np.subtract(at_edges[:, 1:], at_edges[:, :-1], out=cells[:, 1:-1])
    return cells
