"""Shares of mismatched pairs with 95 % intervals, from answers on a stratified sample.

A corpus is cut into cells, for example strata by noise probability, each parted by what a rule
flags. The number of pairs of a cell is known; how many of them are mismatched is estimated from
some that were drawn at random and judged. Notation, for cell c:

    N_c pairs, n_c of them with an answer, x_c of those mismatched, theta_c the unknown share

The intervals invert a test. For every value that the share of interest may have, the thetas that
fit the answers best *and give the share this value* are found (binomial likelihoods under one
linear condition), and the value is kept if the answers are not in the outer 2.5 % of either tail
under these thetas. The tails are those of a sum of hypergeometric counts, by its first three
cumulants (a shifted gamma distribution, Pearson's type III), corrected for continuity.

So a cell in which no mismatch was found does not count as clean: its theta is raised as far as the
answers allow, and pairs with a large weight N_c / n_c allow the most. Wald's interval, which takes
its variance from the estimate, has length 0 there.

Everything is computed for B corpora, rules or samples at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import gammainc, gammaincc, ndtr

from ncclean.estimates import Estimate

_TAIL = 0.025
_STEPS, _INNER_STEPS = 32, 44  # bisections
_SYMMETRIC = 1e-4  # a skewness below this is none
_LARGEST_SKEWNESS = 2.0
_TINY = 1e-12
# Of the half step to the next count that a tail is corrected by for continuity: all of it for a few
# answers, `_LASTING` of it for any number. Without, intervals of 5 to 50 answers cover down to 90 %
# of the time; with all of it for any number, they are wider than needed.
_LASTING, _CORRECTED_ANSWERS = 0.3, 10.0


@dataclass(frozen=True)
class Estimates:
    """(B,) shares, NaN where nothing says what they are, with their 95 % intervals."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __getitem__(self, number: int) -> Estimate:
        return Estimate(*(float(side[number]) for side in (self.value, self.low, self.high)))

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class Cells:
    """(B, C) `pairs`, `answers` and `mismatched`: N_c, n_c and x_c, as float64."""

    pairs: np.ndarray
    answers: np.ndarray
    mismatched: np.ndarray

    def pooled(self) -> Cells:
        """Move the pairs of cells without answers to the nearest cell of the row that has some.

        They are then taken to be like those of their neighbour. Rows without any answers stay.
        """
        pairs = self.pairs.copy()
        for row, cell in np.argwhere((self.answers == 0) & (self.pairs > 0)):
            answered = np.flatnonzero(self.answers[row])
            if len(answered):
                nearest = answered[np.abs(answered - cell).argmin()]
                pairs[row, nearest] += self.pairs[row, cell]
                pairs[row, cell] = 0.0
        return Cells(pairs, self.answers, self.mismatched)


def mismatched_share(cells: Cells) -> Estimates:
    """The share of mismatched pairs in all cells of a row, sum N theta / sum N.

    Of all pairs it is the noise rate, of those that a rule flags its precision. Unknown without
    answers or without pairs.
    """
    problem = _Problem(cells.pooled())
    judged = cells.answers.sum(axis=1) > 0
    weights = problem.pairs / np.maximum(problem.pairs.sum(axis=1, keepdims=True), 1)
    scale = problem.scale(weights)

    def theta(side: int, angle: np.ndarray) -> np.ndarray:
        """Along the thetas of largest likelihood, the share depends on one multiplier alone."""
        return problem.at(-side * scale * np.tan(angle)[:, None] * weights)

    ends = []
    for side in (-1, 1):

        def is_inside(angle: np.ndarray, side: int = side) -> np.ndarray:
            return problem.tail(weights, theta(side, angle), side) > _TAIL

        nothing = np.zeros(len(judged))
        angle = _last(is_inside, nothing, nothing + math.pi / 2, _INNER_STEPS)
        ends.append((weights * theta(side, angle)).sum(axis=1))
    value = (weights * problem.seen).sum(axis=1)
    return _estimates(np.where(judged, value, np.nan), *ends)


def found_share(flagged: Cells, others: Cells) -> Estimates:
    """The share of the mismatched pairs that are flagged: the recall of a rule.

    sum over flagged N theta / sum over all N theta. It is r where the flagged mismatches times
    1 - r are as many as the others times r, which is linear in the thetas, so the same test does.
    Unknown if no mismatch was found, or if there are no answers on one of the sides.
    """
    judged = (flagged.answers.sum(axis=1) > 0) & (others.answers.sum(axis=1) > 0)
    sides = flagged.pooled(), others.pooled()
    names = ("pairs", "answers", "mismatched")
    problem = _Problem(
        Cells(*(np.concatenate([getattr(side, name) for side in sides], axis=1) for name in names))
    )
    is_flagged = np.arange(problem.pairs.shape[1]) < flagged.pairs.shape[1]
    pairs = problem.pairs / np.maximum(problem.pairs.sum(axis=1, keepdims=True), 1)

    def recall(of_flagged: np.ndarray, of_others: np.ndarray) -> np.ndarray:
        caught = (pairs * of_flagged)[:, is_flagged].sum(axis=1)
        missed = (pairs * of_others)[:, ~is_flagged].sum(axis=1)
        share = np.full(len(caught), np.nan)
        np.divide(caught, caught + missed, out=share, where=caught + missed > 0)
        return share

    value = recall(problem.seen, problem.seen)
    judged &= ~np.isnan(value)
    start = np.where(judged, value, 0.5)
    ends = []
    for side, extreme in (
        (-1, recall(problem.least, problem.most)),
        (1, recall(problem.most, problem.least)),
    ):

        def is_inside(share: np.ndarray, side: int = side) -> np.ndarray:
            weights = np.where(is_flagged, 1 - share[:, None], -share[:, None]) * pairs
            return problem.tail(weights, problem.balanced(weights), side) > _TAIL

        ends.append(_last(is_inside, start, np.where(judged, extreme, start), _STEPS))
    return _estimates(np.where(judged, value, np.nan), *ends)


def _last(
    is_inside: Callable[[np.ndarray], np.ndarray], near: np.ndarray, far: np.ndarray, steps: int
) -> np.ndarray:
    """(B,) the farthest points from `near` towards `far` that are inside, by bisection."""
    inside, outside = near, far
    for _ in range(steps):
        middle = (inside + outside) / 2
        holds = is_inside(middle)
        inside, outside = np.where(holds, middle, inside), np.where(holds, outside, middle)
    return outside


def _estimates(value: np.ndarray, low: np.ndarray, high: np.ndarray) -> Estimates:
    """Build estimates; an unknown one spans all values, and each value lies in its interval."""
    defined = ~np.isnan(value)
    value = np.clip(value, 0.0, 1.0)
    low = np.where(defined, np.clip(np.fmin(low, value), 0.0, 1.0), 0.0)
    return Estimates(value, low, np.where(defined, np.clip(np.fmax(high, value), 0.0, 1.0), 1.0))


class _Problem:
    """Cells, and what is known of their thetas without any doubt.

    `seen` (B, C) are the shares among the answers, `least` and `most` (B, C) those if all pairs
    without an answer were matched, or mismatched. In cells without answers all are 0.
    """

    def __init__(self, cells: Cells) -> None:
        self.pairs = np.where(cells.answers > 0, cells.pairs, 0.0)
        self.answers = np.where(self.pairs > 0, cells.answers, 0.0)
        pairs, answers = np.maximum(self.pairs, 1), np.maximum(self.answers, 1)
        there = self.pairs > 0
        self.seen = np.where(there, cells.mismatched / answers, 0.0)
        self.least = np.where(there, cells.mismatched / pairs, 0.0)
        self.most = np.where(there, 1 - (self.answers - cells.mismatched) / pairs, 0.0)
        # Without replacement n answers are worth n / (1 - n / N); of all of them no doubt is left.
        rate = self.answers / pairs
        self._worth = np.where(rate < 1, self.answers / np.where(rate < 1, 1 - rate, 1), 0.0)
        self._worth_mismatched = self._worth * self.seen
        # Cumulants of hypergeometric counts, of sums in units of N / n.
        left = (self.pairs - self.answers) / np.maximum(self.pairs - 1, 1)
        skewed = left * (self.pairs - 2 * self.answers) / np.maximum(self.pairs - 2, 1)
        self._variance, self._third = left / answers, skewed / answers**2

    def tail(self, weights: np.ndarray, theta: np.ndarray, side: int) -> np.ndarray:
        """(B,) how likely sum w x / n is at most (`side` 1) or at least (-1) what was seen.

        With these thetas. Of the probability of what was seen itself, half counts, and more of it
        the fewer answers there are: see `_LASTING`.
        """
        spread = theta * (1 - theta)
        variances = weights**2 * self._variance * spread
        variance = variances.sum(axis=1)
        third = (weights**3 * self._third * spread * (1 - 2 * theta)).sum(axis=1)
        difference = side * (weights * (self.seen - theta)).sum(axis=1)
        doubtful = variance > _TINY**2
        deviation = np.sqrt(np.where(doubtful, variance, 1.0))
        # One more mismatch among the answers of a cell changes the sum by a step. Cells count by
        # how much of the doubt is theirs, and so do their answers (Satterthwaite).
        answers = np.maximum(self.answers, 1)
        parts = variances / np.where(doubtful, variance, 1.0)[:, None]
        step = (np.abs(weights) / answers * parts).sum(axis=1)
        per_answer = (parts**2 / answers).sum(axis=1)
        correction = np.minimum(_LASTING + _CORRECTED_ANSWERS * per_answer, 1.0)
        without = np.where(np.abs(difference) < _TINY, 0.5, (difference > 0).astype(float))
        z = (difference + correction * step / 2) / deviation
        return np.where(doubtful, _pearson(z, side * third / deviation**3), without)

    def balanced(self, weights: np.ndarray) -> np.ndarray:
        """(B, C) thetas of the largest likelihood with sum w theta = 0; weights have both signs."""
        scale = self.scale(weights)

        def theta(angle: np.ndarray) -> np.ndarray:
            return self.at(scale * np.tan(angle)[:, None] * weights)

        def is_above(angle: np.ndarray) -> np.ndarray:
            above: np.ndarray = (weights * theta(angle)).sum(axis=1) > 0
            return above

        quarter = np.full(len(weights), math.pi / 2)
        return theta(_last(is_above, -quarter, quarter, _INNER_STEPS))

    def scale(self, weights: np.ndarray) -> np.ndarray:
        """(B, 1) the largest of Lagrange's multipliers that matters to a cell by itself."""
        size = np.abs(weights)
        worth = np.divide(self._worth, size, out=np.zeros_like(size), where=size > 0)
        largest: np.ndarray = np.maximum(worth.max(axis=1, keepdims=True), 1.0)
        return largest

    def at(self, slope: np.ndarray) -> np.ndarray:
        """(B, C) thetas with x / theta - (n - x) / (1 - theta) = slope, within their bounds.

        With Lagrange's multiplier m and slope = m w they are those of the largest likelihood for
        some sum w theta. The solution of the quadratic equation falls where the slope rises.
        """
        n, x = self._worth, self._worth_mismatched
        linear = slope + n
        root = np.sqrt(np.maximum(linear**2 - 4 * slope * x, 0.0))
        # Of the two forms of the root, the one that does not subtract alike numbers.
        upper, lower = (
            np.where(linear > 0, 2 * x, linear - root),
            np.where(linear > 0, linear + root, 2 * slope),
        )
        theta = np.divide(upper, lower, out=self.seen.copy(), where=lower != 0)
        clipped: np.ndarray = np.clip(theta, self.least, self.most)
        return clipped


def _pearson(z: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """(B,) P(Z <= z) of Pearson's type III with mean 0, variance 1 and this skewness.

    Up to that of an exponential distribution: beyond, hardly anything lies on one side of the mean.
    """
    skewness = np.clip(skewness, -_LARGEST_SKEWNESS, _LARGEST_SKEWNESS)
    is_skewed = np.abs(skewness) > _SYMMETRIC
    skew = np.where(is_skewed, skewness, 1.0)
    shape = 4 / skew**2
    at = np.maximum(shape + 2 * z / skew, 0.0)
    gamma = np.where(skew > 0, gammainc(shape, at), gammaincc(shape, at))
    tail: np.ndarray = np.where(is_skewed, gamma, ndtr(z))
    return tail
