"""Simulated audits: corpora with known mismatches, and samples of them judged by the truth.

A corpus is cosines of two normal distributions, the mismatched ones around 0. Some mismatches may
be near misses: they look as if they were matched, which no calibration from random mismatches
expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import logit
from scipy.stats import norm

from ncclean.auditing.intervals import Cells, Estimates, found_share, mismatched_share
from ncclean.auditing.strata import BINS_PER_LOGIT, FIRST_BIN, LAST_BIN, Strata, strata_of

_NEAR_MISS_SHIFT = 0.5  # below matched pairs, in standard deviations
_WORST = 0.1  # share that the second rule flags
FIGURES = ("precision", "recall", "kept")


@dataclass(frozen=True)
class Corpus:
    """(N,) `probability` as the calibration has it, the truth, and `flags` by rule, (N,) bool."""

    probability: np.ndarray
    is_mismatched: np.ndarray
    flags: Mapping[str, np.ndarray]

    @property
    def strata(self) -> Strata:
        with np.errstate(divide="ignore"):
            bins = np.floor(BINS_PER_LOGIT * logit(self.probability))
        bins = np.clip(bins, FIRST_BIN, LAST_BIN - 1).astype(int) - FIRST_BIN
        return strata_of(np.bincount(bins, minlength=LAST_BIN - FIRST_BIN))

    def truths(self) -> dict[str, float | None]:
        """By figure: `noise_rate`, and precision, recall and the noise of the kept by rule."""
        y = self.is_mismatched
        truths: dict[str, float | None] = {"noise_rate": float(y.mean())}
        for rule, flag in self.flags.items():
            truths[f"{rule}: precision"] = float(y[flag].mean()) if flag.any() else None
            truths[f"{rule}: recall"] = float(flag[y].mean()) if y.any() else None
            truths[f"{rule}: kept"] = float(y[~flag].mean()) if not flag.all() else None
        return truths


def simulated_corpus(
    pairs: int, rate: float, separation: float, near_misses: float, rng: np.random.Generator
) -> Corpus:
    """A corpus with `rate` mismatched pairs, of which a share are near misses.

    The calibration knows both distributions, and of the mismatches those that are not near misses.
    The second rule flags the worst tenth by a noisy copy of the cosine, which crosses the strata.
    """
    count = round(rate * pairs)
    near = round(near_misses * count)
    is_mismatched = np.arange(pairs) < count
    cosine = rng.normal(np.where(is_mismatched, 0.0, separation), 1.0)
    cosine[:near] = rng.normal(separation - _NEAR_MISS_SHIFT, 1.0, near)
    known = (count - near) / pairs
    mismatched, matched = norm.pdf(cosine), norm.pdf(cosine - separation)
    probability = known * mismatched / (known * mismatched + (1 - known) * matched)
    other = cosine + rng.normal(0.0, 1.0, pairs)
    flags = {"p >= 0.5": probability >= 0.5, "worst tenth": other < np.quantile(other, _WORST)}
    return Corpus(probability, is_mismatched, flags)


class Audits:
    """Audits of one corpus by samples of a size."""

    def __init__(self, corpus: Corpus, answers: int) -> None:
        self._corpus = corpus
        strata = corpus.strata
        self.stratum = np.searchsorted(strata.bounds, corpus.probability, side="right")
        self.pairs = np.bincount(self.stratum, minlength=len(strata))
        self._taken = np.minimum(strata.allocated(answers), self.pairs)
        self._places = [np.flatnonzero(self.stratum == number) for number in range(len(strata))]

    def draw(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """(B, n) places of the drawn pairs, in so many draws."""
        return np.array(
            [
                np.concatenate(
                    [
                        rng.choice(places, taken, replace=False)
                        for places, taken in zip(self._places, self._taken, strict=True)
                    ]
                )
                for _ in range(draws)
            ]
        )

    def weights(self, drawn: np.ndarray) -> np.ndarray:
        """Inverse sampling rates, in the shape of `drawn`."""
        weights: np.ndarray = (self.pairs / np.maximum(self._taken, 1))[self.stratum[drawn]]
        return weights

    def without_mismatch(self, drawn: np.ndarray) -> float:
        """Strata in which no mismatch was drawn, on average."""
        return float((self._cells(drawn).mismatched == 0).sum(axis=1).mean())

    def estimates(self, drawn: np.ndarray) -> dict[str, Estimates]:
        """By figure, as `Corpus.truths` names them."""
        figures = {"noise_rate": mismatched_share(self._cells(drawn))}
        for rule, flag in self._corpus.flags.items():
            flagged, others = self._cells(drawn, flag), self._cells(drawn, ~flag)
            figures[f"{rule}: precision"] = mismatched_share(flagged)
            figures[f"{rule}: recall"] = found_share(flagged, others)
            figures[f"{rule}: kept"] = mismatched_share(others)
        return figures

    def _cells(self, drawn: np.ndarray, among: np.ndarray | None = None) -> Cells:
        """Of the pairs `among` which the figure is, (N,) bool."""
        strata, y = len(self.pairs), self._corpus.is_mismatched
        among = np.ones(len(y), bool) if among is None else among
        pairs = np.bincount(self.stratum[among], minlength=strata)
        stratum, counts = self.stratum[drawn], among[drawn]
        is_in = np.stack([(stratum == number) & counts for number in range(strata)], axis=1)
        return Cells(
            np.broadcast_to(pairs.astype(float), (len(drawn), strata)),
            is_in.sum(axis=2).astype(float),
            (is_in & y[drawn][:, None]).sum(axis=2).astype(float),
        )
