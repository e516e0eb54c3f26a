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
from ncclean.auditing.strata import (
    BINS_PER_LOGIT,
    FIRST_BIN,
    LAST_BIN,
    Strata,
    by_answer,
    strata_of,
)

_NEAR_MISS_SHIFT = 0.5  # below matched pairs, in standard deviations
_WORST = 0.1  # share that the second rule flags


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


Drawn = list[tuple[np.ndarray, np.ndarray]]


class Audits:
    """Audits of one corpus by people, and a judge whose (N,) answers are 0 match, 1 mismatch."""

    def __init__(
        self, corpus: Corpus, people: int, judge: np.ndarray | None = None, judged: int = 0
    ) -> None:
        self._corpus, self._people = corpus, people
        pairs = len(corpus.is_mismatched)
        self._judge = np.zeros(pairs, int) if judge is None else np.asarray(judge, int)
        self._strata = corpus.strata
        count = len(self._strata)
        self.stratum = np.searchsorted(self._strata.bounds, corpus.probability, side="right")
        self.pairs = np.bincount(self.stratum, minlength=count)
        self._taken = np.minimum(self._strata.allocated(people), self.pairs)
        wanted = np.minimum(self._strata.allocated(judged), self.pairs)
        self._judged = np.maximum(wanted, self._taken)
        self._places = [np.flatnonzero(self.stratum == number) for number in range(count)]
        self._rates = np.bincount(self.stratum, corpus.probability) / np.maximum(self.pairs, 1)

    def draw(self, draws: int, rng: np.random.Generator, by_judge: bool = False) -> Drawn:
        """In each draw the places of the judge's pairs, and of people's among them."""
        return [self._draw(rng, by_judge) for _ in range(draws)]

    def _draw(self, rng: np.random.Generator, by_judge: bool) -> tuple[np.ndarray, np.ndarray]:
        drawn = [
            rng.permutation(places)[:taken]
            for places, taken in zip(self._places, self._judged, strict=True)
        ]
        judged = np.concatenate(drawn)
        if not by_judge:
            people = [places[:n] for places, n in zip(drawn, self._taken, strict=True)]
            return judged, np.concatenate(people)
        counts = self._counts(judged)
        taken = by_answer(self._strata, counts, self._rates).allocated(self._people)
        cell = 3 * self.stratum[judged] + self._judge[judged]
        cells = (judged[cell == number][:n] for number, n in enumerate(taken) if n)
        return judged, np.concatenate(list(cells))

    def weights(self, places: np.ndarray) -> np.ndarray:
        """Inverse sampling rates of pairs that people judge."""
        return np.asarray((self.pairs / np.maximum(self._taken, 1))[self.stratum[places]])

    def estimates(
        self, draws: Drawn, *, by_judge: bool = False, alone: bool = False
    ) -> dict[str, Estimates]:
        """By figure, as `Corpus.truths` names them; `alone` by people's answers alone."""

        def cells(among: np.ndarray) -> Cells:
            cells = self._cells(draws, among, by_judge)
            return cells.without_judge() if alone else cells

        figures = {"noise_rate": mismatched_share(cells(np.ones(len(self.stratum), bool)))}
        for rule, flag in self._corpus.flags.items():
            flagged, others = cells(flag), cells(~flag)
            figures[f"{rule}: precision"] = mismatched_share(flagged)
            figures[f"{rule}: recall"] = found_share(flagged, others)
            figures[f"{rule}: kept"] = mismatched_share(others)
        return figures

    def _cells(self, draws: Drawn, among: np.ndarray, by_judge: bool) -> Cells:
        """The cells of a figure on the pairs `among` (N,) in each draw."""
        y = self._corpus.is_mismatched
        people = [places[among[places]] for _, places in draws]
        pairs = np.bincount(self.stratum[among], minlength=len(self.pairs)).astype(float)
        return Cells(
            np.broadcast_to(pairs, (len(draws), len(pairs))),
            np.stack([self._counts(places) for places in people]),
            np.stack([self._counts(places[y[places]]) for places in people]),
            np.stack([self._counts(judged[among[judged]]) for judged, _ in draws]),
            by_judge,
        )

    def _counts(self, places: np.ndarray) -> np.ndarray:
        """(S, 3) pairs by stratum and the judge's answer."""
        cell = 3 * self.stratum[places] + self._judge[places]
        return np.bincount(cell, minlength=3 * len(self.pairs)).reshape(-1, 3).astype(float)


def covered(estimates: Estimates, truth: float) -> int:
    """How many intervals hold the truth."""
    low, high = estimates.low - 1e-12, estimates.high + 1e-12
    return int(((low <= truth) & (truth <= high)).sum())


def width(estimates: Estimates) -> float:
    """The mean width of the intervals."""
    return float((estimates.high - estimates.low).mean())
