"""Shares of mismatched pairs with 95 % intervals, from answers on a stratified sample.

A corpus is cut into cells, for example strata by noise probability, each split by whether a rule
flags. The number of pairs in a cell is known; its mismatched pairs are estimated from some that
were drawn at random and judged. Notation, for cell c:

    N_c pairs, n_c of them with an answer, x_c of those mismatched, theta_c the unknown share

The intervals invert a test. For every possible value of the share of interest, the thetas that fit
the answers best *and give the share this value* are found (binomial likelihoods under one linear
condition); the value is kept if the answers are not in the outer 2.5 % of either tail under these
thetas. The tails are those of a sum of hypergeometric counts, by its first three cumulants (a
shifted gamma distribution, Pearson's type III), corrected for continuity.

So a cell without mismatches among its answers does not count as clean: its theta is raised as far
as the answers allow, most for pairs with a large weight N_c / n_c. There, Wald's interval, which
takes its variance from the estimate, has length 0.

Everything is computed for B corpora, rules or samples at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ncclean.auditing.two_phase import Problem, last
from ncclean.base.estimates import Estimate

_TAIL = 0.025
_STEPS, _INNER_STEPS = 32, 45  # bisections
# A judge is used if the variance with it is at most this share of that without. More cells leave
# more room for unseen mismatches, which costs more than a poor judge gains.
_WORTH_A_JUDGE = 0.8


@dataclass(frozen=True)
class Estimates:
    """B estimated shares, NaN if unknown, with the ends of their 95 % intervals, (B,) each."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __getitem__(self, number: int) -> Estimate:
        return Estimate(*(float(side[number]) for side in (self.value, self.low, self.high)))

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class Cells:
    """Counts of pairs and answers in C cells (strata, or their parts), for B figures; (B, C) each.

    `pairs` are all pairs of a cell, `answers` those that people answered, `mismatched` those of
    which they said so. With a judge, `answers`, `mismatched` and `judged`, the judge's answers, are
    (B, C, 3), by the judge's answer: match, mismatch, neither. Pairs that people answered are among
    the judged. If people's pairs were `drawn_by_judge`, each cell and answer is a separate sample.
    """

    pairs: np.ndarray
    answers: np.ndarray
    mismatched: np.ndarray
    judged: np.ndarray | None = None
    drawn_by_judge: bool = False

    @property
    def answered(self) -> np.ndarray:
        """The (B, C) numbers of people's answers."""
        return self.answers if self.judged is None else self.answers.sum(axis=2)

    def without_judge(self) -> Cells:
        """Return the counts of the same cells, without a judge."""
        return Cells(self.pairs, self.answers.sum(axis=2), self.mismatched.sum(axis=2))

    def split(self) -> Cells:
        """Split each cell in three by the judge's answer; the first C have the first answer."""
        assert self.judged is not None
        of_all = np.maximum(self.judged.sum(axis=2, keepdims=True), 1)
        pairs = self.pooled()[..., None] * self.judged / of_all
        parts = (pairs, self.answers, self.mismatched, self.judged)
        pairs, answers, mismatched, judged = (
            part.swapaxes(1, 2).reshape(len(part), -1) for part in parts
        )
        return Cells(pairs, answers[..., None], mismatched[..., None], judged[..., None])

    def pooled(self) -> np.ndarray:
        """Return (B, C) pairs, moving those of cells without answers to the nearest with some.

        They are assumed to be like those of their neighbour. Rows without any answers are
        unchanged.
        """
        pairs, answers = self.pairs.copy(), self.answered
        for row, cell in np.argwhere((answers == 0) & (pairs > 0)):
            answered = np.flatnonzero(answers[row])
            if len(answered):
                nearest = answered[np.abs(answered - cell).argmin()]
                pairs[row, nearest] += self.pairs[row, cell]
                pairs[row, cell] = 0.0
        return pairs


def mismatched_share(cells: Cells) -> Estimates:
    """Estimate the share of mismatched pairs in all cells of each row, sum N theta / sum N.

    N are the pairs of a cell, theta the share of mismatched ones. Over all pairs it is the noise
    rate, over those that a rule flags its precision. Unknown without answers or without pairs. The
    judge is ignored if it hardly makes the share more certain.
    """
    estimates, variance = _mismatched_share(cells)
    if cells.judged is None or cells.drawn_by_judge:
        return estimates
    return _chosen(estimates, variance, *_mismatched_share(cells.without_judge()))


def _mismatched_share(cells: Cells) -> tuple[Estimates, np.ndarray]:
    """The shares, and their variances."""
    problem = _problem(cells)
    judged = cells.answered.sum(axis=1) > 0
    weights = problem.pairs / np.maximum(problem.pairs.sum(axis=1, keepdims=True), 1)
    of_thetas = problem.thetas_weights(weights)
    scale = problem.scale(of_thetas)

    def theta(side: int, angle: np.ndarray) -> np.ndarray:
        """Along the thetas of largest likelihood, the share depends on one multiplier alone."""
        return problem.at(-side * scale * np.tan(angle)[:, None] * of_thetas)

    ends = []
    for side in (-1, 1):

        def is_inside(angle: np.ndarray, side: int = side) -> np.ndarray:
            return problem.tail(weights, theta(side, angle), side) > _TAIL

        quarter = np.full(len(judged), math.pi / 2)
        angle = last(is_inside, -quarter, quarter, _INNER_STEPS)
        ends.append((of_thetas * theta(side, angle)).sum(axis=1))
    value = np.where(judged, (weights * problem.mean).sum(axis=1), np.nan)
    return _estimates(value, *ends), problem.variance(weights)


def found_share(flagged: Cells, others: Cells) -> Estimates:
    """Estimate the share of the mismatched pairs that a rule flags: its recall.

    With N pairs in a cell and a share theta of mismatched ones, it is sum N theta over flagged
    cells / sum N theta over all cells. It equals r if the flagged mismatches times 1 - r equal the
    others times r, which is linear in the thetas, so intervals are those of `mismatched_share`.
    Unknown if no mismatch was found, or if one side has no answers.
    """
    estimates, variance = _found_share(flagged, others)
    if flagged.judged is None or flagged.drawn_by_judge:
        return estimates
    alone = _found_share(flagged.without_judge(), others.without_judge())
    return _chosen(estimates, variance, *alone)


def _found_share(flagged: Cells, others: Cells) -> tuple[Estimates, np.ndarray]:
    """The recalls, and the variances of what is 0 at them."""
    judged = (flagged.answered.sum(axis=1) > 0) & (others.answered.sum(axis=1) > 0)
    problem = _problem(flagged, others)
    is_flagged = problem.side == 0
    pairs = problem.pairs / np.maximum(problem.pairs.sum(axis=1, keepdims=True), 1)

    def recall(of_flagged: np.ndarray, of_others: np.ndarray) -> np.ndarray:
        caught = np.maximum((pairs * of_flagged)[:, is_flagged].sum(axis=1), 0.0)
        missed = np.maximum((pairs * of_others)[:, ~is_flagged].sum(axis=1), 0.0)
        share = np.full(len(caught), np.nan)
        np.divide(caught, caught + missed, out=share, where=caught + missed > 0)
        return share

    def weights(share: np.ndarray) -> np.ndarray:
        of_sides: np.ndarray = np.where(is_flagged, 1 - share[:, None], -share[:, None]) * pairs
        return of_sides

    value = recall(problem.mean, problem.mean)
    judged &= ~np.isnan(value)
    least, most = problem.of_cells(problem.least), problem.of_cells(problem.most)
    lowest = np.nan_to_num(recall(least, most), nan=0.0)
    highest = np.nan_to_num(recall(most, least), nan=1.0)
    ends = []
    for side, near, far in ((-1, highest, lowest), (1, lowest, highest)):

        def is_inside(share: np.ndarray, side: int = side) -> np.ndarray:
            return problem.tail(weights(share), problem.balanced(weights(share)), side) > _TAIL

        ends.append(last(is_inside, near, far, _STEPS))
    middle = np.where(judged, value, 0.5)
    return _estimates(np.where(judged, value, np.nan), *ends), problem.variance(weights(middle))


def _chosen(
    judged: Estimates, variance: np.ndarray, alone: Estimates, variance_alone: np.ndarray
) -> Estimates:
    """Return the estimates with a judge if it clearly reduces the variance, else those without."""
    helps = variance < _WORTH_A_JUDGE * variance_alone
    names = ("value", "low", "high")
    return Estimates(*(np.where(helps, getattr(judged, n), getattr(alone, n)) for n in names))


def variances(cells: Cells) -> tuple[float, float]:
    """Return the variances of the first mismatched share due to people's and a judge's answers."""
    problem = _problem(cells)
    weights = problem.pairs / np.maximum(problem.pairs.sum(axis=1, keepdims=True), 1)
    people, judge = problem.variances(weights)
    return float(people[0]), float(judge[0])


def _problem(*sides: Cells) -> Problem:
    """Build the problem of these cells, with a separate lambda for each side."""
    whole = [cells.split() if cells.drawn_by_judge else cells for cells in sides]
    pairs = [cells.pooled() for cells in whole]
    parts = []
    for cells, mine in zip(whole, pairs, strict=True):
        counts = (cells.answers, cells.mismatched, mine if cells.judged is None else cells.judged)
        parts.append([c[..., None] if cells.judged is None else c for c in counts])
    sizes = [cells.pairs.shape[1] for cells in sides]
    firsts = np.cumsum([0, *sizes[:-1]])
    strata = [
        first + np.arange(mine.shape[1]) % size
        for first, size, mine in zip(firsts, sizes, pairs, strict=True)
    ]
    answers, mismatched, judged = (
        np.concatenate(of_sides, axis=1) for of_sides in zip(*parts, strict=True)
    )
    side = np.repeat(np.arange(len(sides)), [mine.shape[1] for mine in pairs])
    return Problem(
        np.concatenate(pairs, axis=1), answers, mismatched, judged, side, np.concatenate(strata)
    )


def _estimates(value: np.ndarray, low: np.ndarray, high: np.ndarray) -> Estimates:
    """Build estimates; an unknown one spans all values, and each value lies in its interval."""
    defined = ~np.isnan(value)
    value = np.clip(value, 0.0, 1.0)
    low = np.where(defined, np.clip(np.fmin(low, value), 0.0, 1.0), 0.0)
    return Estimates(value, low, np.where(defined, np.clip(np.fmax(high, value), 0.0, 1.0), 1.0))
