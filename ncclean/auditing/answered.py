"""Answered pairs as cells: counts by stratum, and by what a judge says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ncclean.auditing.intervals import Cells
from ncclean.auditing.two_phase import NEITHER


@dataclass(frozen=True)
class Answered:
    """People's answers: (n,) `stratum` of `strata`, `mismatched` (0 or 1), and `judge`.

    `judge` is the judge's answer, -1 where it has none; None without a judge.
    """

    strata: int
    stratum: np.ndarray
    mismatched: np.ndarray
    judge: np.ndarray | None
    drawn_by_judge: bool

    def cells(self, among: np.ndarray, pairs: np.ndarray, judged: np.ndarray) -> Cells:
        """Cells of R figures: (R, n) which answers count, (R, S) pairs, (R, S, 3) the judge's.

        What people answered and the judge did not counts as judged: it is neither.
        """
        if self.judge is None:
            return Cells(pairs, self._counts(among), self._counts(among, self.mismatched))
        answers = self._counts(among)
        judged = judged.astype(float)
        judged[..., NEITHER] += self._counts(among & (self.judge < 0))[..., NEITHER]
        mismatched = self._counts(among, self.mismatched)
        return Cells(pairs, answers, mismatched, judged, self.drawn_by_judge)

    def weights(self, whole: Cells, with_judge: bool) -> np.ndarray:
        """(n,) how many pairs of the corpus each answer stands for.

        With a judge, what each of its answers counts for is brought to its share among all judged
        pairs, so that the weighted share of mismatches is near the corrected one.
        """
        pairs, answers = whole.pairs[0], whole.answered[0]
        weights: np.ndarray = (pairs / np.maximum(answers, 1))[self.stratum]
        if self.judge is None or whole.judged is None or not with_judge:
            return weights
        judge = np.where(self.judge < 0, NEITHER, self.judge)
        judged = whole.judged[0]
        share = judged / np.maximum(judged.sum(axis=1, keepdims=True), 1)
        if self.drawn_by_judge:
            by_cell = pairs[:, None] * share / np.maximum(whole.answers[0], 1)
            drawn: np.ndarray = by_cell[self.stratum, judge]
            return drawn
        of_all = (pairs[:, None] * share).sum(axis=0)
        of_answers = np.bincount(judge, weights, minlength=3)
        raked: np.ndarray = weights * (of_all / np.maximum(of_answers, 1e-9))[judge]
        return raked

    def _counts(self, among: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """(R, S) or (R, S, 3) sums over the answers that count."""
        cell, shape = self.stratum, [self.strata]
        if self.judge is not None:
            cell = 3 * self.stratum + np.where(self.judge < 0, NEITHER, self.judge)
            shape = [self.strata, 3]
        size = int(np.prod(shape))
        sums = [
            np.bincount(cell[mine], None if weights is None else weights[mine], minlength=size)
            for mine in among
        ]
        return np.stack(sums).astype(float).reshape(len(among), *shape)
