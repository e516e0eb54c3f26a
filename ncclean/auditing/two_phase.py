"""Test a weighted share of mismatched pairs, by the answers of people and of a judge.

A judge, who may err, answered m_c of the N_c pairs of cell c, drawn at random; people answered n_c
of those, drawn at random again (two-phase sampling, Neyman 1938). With y the truth (1 mismatch, 0
match) and f the judge's answer as a number (1, 0, or the cell's mean if it is neither),

    T_c = mean of y over n_c - lambda (mean of f over n_c - mean of f over m_c)

estimates the share of the cell without bias for every judge and every lambda: it is the
prediction-powered estimate (Angelopoulos et al. 2023). lambda is the slope of y on f within cells,
for which T varies least (PPI++, Angelopoulos, Duchi and Zrnic 2023): 0 if f says nothing about y. A
few mismatches determine a slope poorly, so it is shrunk. Without a judge, m_c = N_c, and T_c is the
mean of y.

theta_cj is the unknown share of mismatched pairs among those of cell c that have the judge's j-th
answer. Under given thetas, sum w_c T_c has the tails of a shifted gamma distribution with its first
three cumulants (Pearson's type III), corrected for continuity.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammainc, gammaincc, ndtr

MATCH, MISMATCH, NEITHER = range(3)  # answers of a judge

_INNER_STEPS = 45  # bisections
_SYMMETRIC = 1e-4  # a skewness below this counts as none
_LARGEST_SKEWNESS = 2.0
_TINY = 1e-12
# The share of the half step to the next count in a tail's continuity correction: all for a few
# answers, `_LASTING` for any number. Without correction, intervals of 5 to 50 answers cover down to
# 90 % of the time; with all of it for any number, they are wider than needed.
_LASTING, _CORRECTED_ANSWERS = 0.3, 10.0
_SHRINKAGE = 2.0  # lambda is multiplied by x / (x + this), for x mismatches or matches
_Factors = tuple[np.ndarray, np.ndarray]


class Problem:
    """The likelihood of weighted shares of mismatched pairs, by answers of people and of a judge.

    For B figures and C cells, takes `pairs` (B, C), and `answers`, `mismatched` and `judged` (B, C,
    J): the counts of people's answers, of those that say mismatched, and of the judge's answers, by
    the J answers of the judge (1 without a judge). `side` (C,) numbers the groups of cells with a
    separate lambda, the slope of people's answers on the judge's. The judge's pairs were drawn at
    random from each `stratum` (C,), one or more cells.

    theta (B, C J) is the unknown share of mismatched pairs in a cell with an answer of the judge.
    `mean` (B, C) is T, the prediction-powered estimate of a cell's share. `least` and `most` are
    the thetas if all pairs without an answer were matched, or mismatched. In cells without answers
    all are 0.
    """

    def __init__(
        self,
        pairs: np.ndarray,
        answers: np.ndarray,
        mismatched: np.ndarray,
        judged: np.ndarray,
        side: np.ndarray,
        stratum: np.ndarray,
    ) -> None:
        has_answers = (answers.sum(axis=2) > 0) & (pairs > 0)
        self.pairs, self.side = np.where(has_answers, pairs, 0.0), side
        answers, mismatched = (
            np.where(has_answers[..., None], x, 0.0) for x in (answers, mismatched)
        )
        count, judged_count = answers.sum(axis=2), judged.sum(axis=2)
        self._count, self._share = count, judged / np.maximum(judged_count, 1)[..., None]
        self._target = _nearest_answered(answers)
        self._of_thetas(answers, mismatched)
        in_stratum = np.equal.outer(stratum, np.unique(stratum)).astype(float)
        self._in_stratum = in_stratum
        self._of_people = _sampling(count, np.maximum(judged_count, count))
        self._of_judge = _sampling(judged_count @ in_stratum, pairs @ in_stratum)
        self._values = _as_numbers(self._share)
        self._lambda = self._slopes(answers, mismatched)
        some = np.maximum(count, 1)
        drift = (answers * self._values).sum(axis=2) / some - self._mean_of(self._values)
        self._seen_mean = mismatched.sum(axis=2) / some
        self.mean = self._seen_mean - self._lambda * drift

    def _of_thetas(self, answers: np.ndarray, mismatched: np.ndarray) -> None:
        """Prepare the bounds and the likelihood of the thetas."""
        pairs = self.thetas_weights(self.pairs)
        n, x = (counts.reshape(pairs.shape) for counts in (answers, mismatched))
        pairs = np.maximum(pairs, n)
        of_some = np.maximum(pairs, 1)
        self._seen, self.least = x / np.maximum(n, 1), x / of_some
        self.most = np.where(n > 0, 1 - (n - x) / of_some, 0.0)
        # Without replacement n answers are worth n / (1 - n / N); all of them leave no doubt.
        rate = n / of_some
        self._worth = np.where(rate < 1, n / np.where(rate < 1, 1 - rate, 1), 0.0)
        self._worth_mismatched = self._worth * self._seen

    def _slopes(self, answers: np.ndarray, mismatched: np.ndarray) -> np.ndarray:
        """Return (B, C) lambdas: covariance of y and f over the variance of f, in counts."""
        n, some = self._count, np.maximum(self._count, 1)
        mean_f = (answers * self._values).sum(axis=2) / some
        mean_y = mismatched.sum(axis=2) / some
        together = (mismatched * self._values).sum(axis=2) / some - mean_f * mean_y
        together = together * some / np.maximum(n - 1, 1)
        spread = self._mean_of(self._values**2) - self._mean_of(self._values) ** 2
        weight = np.where(n > 1, self.pairs**2 * self._of_people[0], 0.0)
        slopes = np.zeros_like(self.pairs)
        for number in np.unique(self.side):
            is_own = self.side == number
            above, below = ((weight * part)[:, is_own].sum(axis=1) for part in (together, spread))
            slope = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
            wrong = mismatched[:, is_own].sum(axis=(1, 2))
            fewer = np.minimum(wrong, n[:, is_own].sum(axis=1) - wrong)
            slope = np.clip(slope, 0, 1) * fewer / (fewer + _SHRINKAGE)
            slopes[:, is_own] = slope[:, None]
        return slopes

    def _mean_of(self, values: np.ndarray) -> np.ndarray:
        """(B, C) mean over the judge's answers of a cell."""
        mean: np.ndarray = (self._share * values).sum(axis=2)
        return mean

    def variance(self, weights: np.ndarray) -> np.ndarray:
        """Return (B,) the variance of sum w T, with weights w (B, C) of the estimated shares T.

        The unknown shares are replaced by those among the answers.
        """
        both: np.ndarray = np.sum(self.variances(weights), axis=0)
        return both

    def variances(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (B,) parts of the variance of sum w T due to people's and the judge's answers."""
        variances, _, of_people = self._cumulants(weights, self._full(self._seen))
        people = of_people.sum(axis=1)
        return people, variances.sum(axis=1) - people

    def tail(self, weights: np.ndarray, theta: np.ndarray, side: int) -> np.ndarray:
        """Return (B,) probabilities that sum w T is as extreme as observed if theta is true.

        At most (`side` 1) or at least (-1) the observed sum, with weights w (B, C) and shares
        `theta` (B, C J). The probability of the observed value itself counts half, and more the
        fewer answers there are: see `_LASTING`.
        """
        theta = self._full(theta)
        variances, thirds, of_people = self._cumulants(weights, theta)
        variance, third = variances.sum(axis=1), thirds.sum(axis=1)
        difference = side * (weights * (self.mean - self._mean_of(theta))).sum(axis=1)
        doubtful = variance > _TINY**2
        deviation = np.sqrt(np.where(doubtful, variance, 1.0))
        # One more mismatch among a cell's answers changes the sum by a step. Cells count by their
        # share of the doubt, as do their answers (Satterthwaite).
        answers = np.maximum(self._count, 1)
        parts = of_people / np.where(doubtful, variance, 1.0)[:, None]
        step = (np.abs(weights) / answers * parts).sum(axis=1)
        per_answer = (parts**2 / answers).sum(axis=1)
        correction = np.minimum(_LASTING + _CORRECTED_ANSWERS * per_answer, 1.0)
        if_certain = np.where(np.abs(difference) < _TINY, 0.5, (difference > 0).astype(float))
        z = (difference + correction * step / 2) / deviation
        return np.where(doubtful, _pearson(z, side * third / deviation**3), if_certain)

    def _cumulants(
        self, weights: np.ndarray, theta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Variances and third cumulants of the parts of sum w T, and people's variances by cell.

        For people's pairs, y - lambda f varies between samples of the judge's pairs; for the
        judge's pairs, y varies between samples of all.
        """
        mean = self._mean_of(theta)
        shift = self._lambda[..., None] * self._values
        middle = (mean - self._mean_of(shift))[..., None]
        of_people = [
            weights**power
            * factor
            * self._mean_of(
                theta * (1 - shift - middle) ** power + (1 - theta) * (-shift - middle) ** power
            )
            for power, factor in zip((2, 3), self._of_people, strict=True)
        ]
        weight = weights @ self._in_stratum
        inside = (weights * mean) @ self._in_stratum
        mean = np.divide(inside, weight, out=np.zeros_like(inside), where=weight != 0)
        spread = mean * (1 - mean)
        of_judge = [
            weight**2 * self._of_judge[0] * spread,
            weight**3 * self._of_judge[1] * spread * (1 - 2 * mean),
        ]
        variances, thirds = (
            np.concatenate(parts, axis=1) for parts in zip(of_people, of_judge, strict=True)
        )
        return variances, thirds, of_people[0]

    def thetas_weights(self, weights: np.ndarray) -> np.ndarray:
        """Return (B, C J) weights of the shares theta, from (B, C) weights of the cells."""
        flat = (weights[..., None] * self._share).reshape(len(weights), -1)
        moved: np.ndarray = np.zeros_like(flat)
        np.add.at(moved, (np.arange(len(flat))[:, None], self._target), flat)
        return moved

    def _full(self, theta: np.ndarray) -> np.ndarray:
        """Return (B, C, J) thetas; those of answers unseen by people come from a neighbour."""
        full: np.ndarray = np.take_along_axis(theta, self._target, axis=1)
        return full.reshape(self._share.shape)

    def of_cells(self, theta: np.ndarray) -> np.ndarray:
        """Return (B, C) mean shares theta of cells, from (B, C J) by the judge's answer."""
        return self._mean_of(self._full(theta))

    def balanced(self, weights: np.ndarray) -> np.ndarray:
        """Return (B, C J) shares theta of largest likelihood with sum w theta = 0.

        `weights` w (B, C) have both signs.
        """
        weights = self.thetas_weights(weights)
        scale = self.scale(weights)

        def theta(angle: np.ndarray) -> np.ndarray:
            return self.at(scale * np.tan(angle)[:, None] * weights)

        def is_above(angle: np.ndarray) -> np.ndarray:
            above: np.ndarray = (weights * theta(angle)).sum(axis=1) > 0
            return above

        quarter = np.full(len(weights), math.pi / 2)
        return theta(last(is_above, -quarter, quarter, _INNER_STEPS))

    def scale(self, weights: np.ndarray) -> np.ndarray:
        """Return (B, 1) the largest Lagrange multiplier that affects any share theta by itself."""
        size = np.abs(weights)
        worth = np.divide(self._worth, size, out=np.zeros_like(size), where=size > 0)
        largest: np.ndarray = np.maximum(worth.max(axis=1, keepdims=True), 1.0)
        return largest

    def at(self, slope: np.ndarray) -> np.ndarray:
        """(B, C J) thetas with x / theta - (n - x) / (1 - theta) = slope, within their bounds.

        With Lagrange's multiplier m and slope = m w they have the largest likelihood for some sum w
        theta. The solution of the quadratic equation falls as the slope rises.
        """
        n, x = self._worth, self._worth_mismatched
        linear = slope + n
        root = np.sqrt(np.maximum(linear**2 - 4 * slope * x, 0.0))
        # Of the root's two forms, use the one that does not subtract similar numbers.
        upper, lower = (
            np.where(linear > 0, 2 * x, linear - root),
            np.where(linear > 0, linear + root, 2 * slope),
        )
        theta = np.divide(upper, lower, out=self._seen.copy(), where=lower != 0)
        clipped: np.ndarray = np.clip(theta, self.least, self.most)
        return clipped


def last(
    is_inside: Callable[[np.ndarray], np.ndarray], near: np.ndarray, far: np.ndarray, steps: int
) -> np.ndarray:
    """Return (B,) points where `is_inside` ends on the way from `near` to `far`, by bisection.

    A point is at most a step beyond the farthest one inside.
    """
    inside, outside = near, far
    for _ in range(steps):
        middle = (inside + outside) / 2
        holds = is_inside(middle)
        inside, outside = np.where(holds, middle, inside), np.where(holds, outside, middle)
    return outside


def _sampling(taken: np.ndarray, of: np.ndarray) -> _Factors:
    """Factors from cumulants of a population to those of a sample's mean, without replacement."""
    some = np.maximum(taken, 1)
    left = np.maximum(of - taken, 0) / np.maximum(of - 1, 1)
    return left / some, left * (of - 2 * taken) / np.maximum(of - 2, 1) / some**2


def _as_numbers(share: np.ndarray) -> np.ndarray:
    """(B, C, J) the judge's answers as numbers; `NEITHER` is the mean of the others in the cell."""
    values = np.zeros_like(share)
    if values.shape[2] > 1:
        told = share[..., MATCH] + share[..., MISMATCH]
        values[..., MISMATCH] = 1.0
        values[..., NEITHER] = share[..., MISMATCH] / np.where(told > 0, told, 1)
    return values


def _nearest_answered(answers: np.ndarray) -> np.ndarray:
    """Return (B, C J), for each theta, the number of that which represents it.

    Itself if people answered some of its pairs; else that of the same judge's answer in the nearest
    cell; else any.
    """
    rows, cells, kinds = answers.shape
    target = np.tile(np.arange(cells * kinds), (rows, 1))
    if kinds == 1:  # cells without answers have no weight
        return target
    cell, kind = (part.ravel() for part in np.indices((cells, kinds)))
    far = np.abs(np.subtract.outer(cell, cell)) + cells * np.not_equal.outer(kind, kind)
    order = np.argsort(far, axis=1, kind="stable")
    answered = answers.reshape(rows, -1) > 0
    first = answered[:, order].argmax(axis=2)  # 0, itself, if nobody answered anything
    nearest: np.ndarray = order[target[0], first]
    return nearest


def _pearson(z: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """(B,) P(Z <= z) of Pearson's type III with mean 0, variance 1 and this skewness.

    Up to that of an exponential distribution: beyond, hardly any mass lies on one side of the mean.
    """
    skewness = np.clip(skewness, -_LARGEST_SKEWNESS, _LARGEST_SKEWNESS)
    is_skewed = np.abs(skewness) > _SYMMETRIC
    skew = np.where(is_skewed, skewness, 1.0)
    shape = 4 / skew**2
    at = np.maximum(shape + 2 * z / skew, 0.0)
    gamma = np.where(skew > 0, gammainc(shape, at), gammaincc(shape, at))
    tail: np.ndarray = np.where(is_skewed, gamma, ndtr(z))
    return tail
