"""Cut a corpus into strata by noise probability, and allocate the pairs to judge.

A pair of probability p adds p (1 - p) to the variance of an estimate, if p is right. People find
mismatches even where p is nearly 0, so the strata use q = .05 + .9 p: they are cut where the sum of
sqrt(q (1 - q)) over the pairs reaches equal parts, and each gets as many answers as its part
(Dalenius and Hodges 1959; Neyman 1934). A pair with p = 1/2 is 2.3 times as likely to be drawn as
one with p = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

_PARTS = 10
_FLOOR = 0.05
# Bins of the logit of p, at whose bounds strata may be cut.
BINS_PER_LOGIT = 8
_LARGEST_LOGIT = 16
FIRST_BIN, LAST_BIN = (sign * BINS_PER_LOGIT * _LARGEST_LOGIT for sign in (-1, 1))
# p = .047, .5 and .953: uncertain pairs are a separate stratum, and the rule at one half is a
# bound.
_ALWAYS_CUT = (-3 * BINS_PER_LOGIT, 0, 3 * BINS_PER_LOGIT)
_ODDS = np.array([0.25, 4.0, 1.0])  # of a mismatch, for a judge's match, mismatch, neither
_FEWEST = 3  # answers of a stratum, if there are enough to give


@dataclass(frozen=True)
class Strata:
    """S strata of a corpus by noise probability q: `bounds` (S - 1,), rising, and `pairs` (S,).

    `unsureness` (S,) are the sums of sqrt(q (1 - q)) over the pairs. A pair is in the stratum with
    the number of bounds that its noise probability reaches.
    """

    bounds: np.ndarray
    pairs: np.ndarray
    unsureness: np.ndarray

    def __len__(self) -> int:
        return len(self.pairs)

    def allocated(self, answers: int) -> np.ndarray:
        """Return (S,) numbers of pairs to judge in each stratum: `answers` in all, or every pair.

        In proportion to `unsureness`, but at least `_FEWEST` and at most all of a stratum. Each
        stratum gets one, even if that exceeds `answers`.
        """
        most = self.pairs.astype(np.int64)
        wanted = min(answers, int(most.sum()))
        cells = int((most > 0).sum())
        taken = np.minimum(most, min(_FEWEST, max(wanted // max(cells, 1), 1)))
        while (left := wanted - int(taken.sum())) > 0:
            is_open = taken < most
            part = np.where(is_open, self.unsureness, 0.0)
            goal = np.maximum(wanted * part / part.sum() - taken, 0.0)
            goal = goal if goal.sum() > 0 else part
            # Largest remainders, so that the numbers add up.
            exact = left * goal / goal.sum()
            more = np.floor(exact).astype(np.int64)
            rest = left - int(more.sum())
            more[np.argsort(more - exact, kind="stable")[:rest]] += 1
            taken = np.minimum(taken + more, most)
        return taken


def by_answer(strata: Strata, judged: np.ndarray, rates: np.ndarray) -> Strata:
    """Split each of S strata in three by a judge's answer.

    Cell 3 h + j has the pairs `judged[h, j]` (S, 3) of stratum h with the answer j. `rates` (S,)
    are the strata's mean noise probabilities. The judge is assumed to be right for four of five
    pairs, which only decides where people's answers go.
    """
    odds = (rates / np.maximum(1 - rates, 1e-9))[:, None] * _ODDS
    middle = _FLOOR + (1 - 2 * _FLOOR) * odds / (1 + odds)
    share = judged / np.maximum(judged.sum(axis=1, keepdims=True), 1)
    unsureness = strata.pairs[:, None] * share * np.sqrt(middle * (1 - middle))
    return Strata(strata.bounds, judged.ravel(), unsureness.ravel())


def strata_of(counts: np.ndarray) -> Strata:
    """Cut a corpus into strata of similar noise probability, from (B,) numbers of pairs by bin.

    Bin b holds logits of the noise probability from (FIRST_BIN + b) / BINS_PER_LOGIT, with
    everything below and above in the outer ones. The strata depend only on the corpus, not on the
    size of a sample, so answers by uid can be assigned to them again.
    """
    bins = np.arange(FIRST_BIN, LAST_BIN)
    middle = _FLOOR + (1 - 2 * _FLOOR) * expit((bins + 0.5) / BINS_PER_LOGIT)
    unsure = counts * np.sqrt(middle * (1 - middle))
    reached = np.cumsum(unsure)
    parts = reached[-1] * np.arange(1, _PARTS) / _PARTS
    cuts = {*_ALWAYS_CUT, *(bins[np.searchsorted(reached, parts)] + 1)}
    stratum = np.searchsorted(np.array(sorted(cuts)), bins, side="right")
    pairs = np.bincount(stratum, counts, minlength=len(cuts) + 1)
    # A cut without pairs between would only make an empty stratum.
    bounds = [cut for cut, below in zip(sorted(cuts), pairs, strict=False) if below]
    stratum = np.searchsorted(np.array(bounds), bins, side="right")
    pairs = np.bincount(stratum, counts, minlength=len(bounds) + 1).astype(np.int64)
    sums = np.bincount(stratum, unsure, minlength=len(bounds) + 1)
    if len(pairs) > 1 and not pairs[-1]:
        bounds, pairs, sums = bounds[:-1], pairs[:-1], sums[:-1]
    return Strata(expit(np.array(bounds) / BINS_PER_LOGIT), pairs, sums)
