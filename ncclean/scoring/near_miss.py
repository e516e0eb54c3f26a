"""Find near misses: compare a caption with variants in which one word is exchanged.

An almost right caption does not look like a random one, so its cosine says little against it. The
estimator's knowledge of the words does: a caption is suspect if another word of the same class fits
its image better, or if its cosine is lower than that of similar captions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ncclean.base.estimates import Estimate
from ncclean.scoring.null import NullModel
from ncclean.scoring.stats import Distributions
from ncclean.scoring.vague_rate import is_usable

# Fewer tell nothing.
_FEWEST = 100
# Only pairs with cosines that fewer than one known mismatch in a hundred reaches tell about near
# misses.
MISMATCHES_BELOW = 0.99
# This share of the matched pairs must have such a cosine, or they do not represent all.
_LEAST_COUNTED = 0.5
# How often a caption's word fits its image better than another of its class: at least this if the
# estimator distinguishes them, one half if it does not; and the captions needed to tell.
_TOLD_APART, _FEWEST_TOLD = 0.6, 20
_LEAST_VARIANCE = 1e-12
_RIDGES = 10.0 ** np.arange(-3, 4)  # in units of the mean eigenvalue


@dataclass(frozen=True)
class ExpectedSimilarity:
    """A regression of the cosine of a pair on its caption alone.

    Ridge regression of the n cosines on the captions' embeddings, with the penalty that predicts
    best. No pair judges itself: its residual is e_i / (1 - h_ii), where h is the hat matrix of the
    fit.
    """

    residual: torch.Tensor  # (n,) cosine minus the expected one, float64
    _centre: torch.Tensor
    _axes: torch.Tensor
    _places: torch.Tensor
    _shrinkage: torch.Tensor
    _slopes: torch.Tensor
    _level: torch.Tensor

    @classmethod
    def fit(cls, text: torch.Tensor, similarity: torch.Tensor) -> ExpectedSimilarity:
        """Fit the expected cosine of a caption to (n, d) captions and their (n,) cosines."""
        text, similarity = text.double(), similarity.double()
        centre, level = text.mean(dim=0), similarity.mean()
        values, axes = torch.linalg.eigh((text - centre).T @ (text - centre))
        places = (text - centre) @ axes
        unit = values.mean().clamp_min(_LEAST_VARIANCE)

        def fitted(ridge: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            shrinkage = 1 / (values.clamp_min(0) + ridge * unit)
            slopes = shrinkage * (places.T @ (similarity - level))
            leverage = (places.square() @ shrinkage + 1 / len(text)).clamp_max(1 - 1e-6)
            return (similarity - level - places @ slopes) / (1 - leverage), shrinkage, slopes

        residual, shrinkage, slopes = min(
            map(fitted, _RIDGES), key=lambda fit: float(fit[0].square().sum())
        )
        return cls(residual, centre, axes, places, shrinkage, slopes, level)

    def residual_of(
        self, text: torch.Tensor, similarity: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """(m,) cosines of changed captions (m, d) with their images, less the expected ones.

        Here too, the pair is left out of the fit: its caption is nearly the same.
        """
        places = (text.double() - self._centre) @ self._axes
        shared = (places * self._shrinkage * self._places[rows]).sum(dim=1) + 1 / len(self._places)
        expected = self._level + places @ self._slopes - shared * self.residual[rows]
        return similarity.double() - expected


@dataclass(frozen=True)
class Exchanges:
    """The exchanges of a caption's words, with the estimated gain of each.

    The gain is v·e(other) - v·e(word), in units of cosine, with the image v and the words' own
    embeddings: an estimate of the whole caption's gain. `places` (c,) is the index of the exchanged
    word. Two exchanges of one word exclude each other.
    """

    places: np.ndarray
    gains: np.ndarray

    def best(self, count: int) -> np.ndarray:
        """Return the word exchanges that raise the cosine most, best first."""
        return np.argsort(-self.gains, kind="stable")[:count]

    def after(self, drawn: int) -> tuple[Exchanges, np.ndarray, np.ndarray]:
        """Return the exchanges possible after exchange `drawn`, its reversal last.

        Returned with the index of each in this object, -1 for the reversal, and whether it undoes
        the exchange.
        """
        others = np.delete(np.arange(len(self.places)), drawn)
        undone = self.places[others] == self.places[drawn]
        gains = self.gains[others] - np.where(undone, self.gains[drawn], 0.0)
        places = np.append(self.places[others], self.places[drawn])
        after = Exchanges(places, np.append(gains, -self.gains[drawn]))
        return after, np.append(others, -1), np.append(undone, True)


def may_be_told_apart(fit: np.ndarray, word: np.ndarray, meaning: np.ndarray) -> bool:
    """Check if images may tell the words of a class apart: not `the` and `a`, nor `of` and `in`.

    `fit` (m, c) is how well each word of the class fits the images of m captions, centred over
    these; `word` (m,) is each caption's word, `meaning` (c,) is equal for synonyms. Words count as
    often as they occur. True if too few captions can tell, false if all have one word.
    """
    own = np.take_along_axis(fit, word[:, None], axis=1)
    wins = (own > fit) + (own == fit) / 2
    weights = np.bincount(word, minlength=fit.shape[1]) * (meaning[word][:, None] != meaning)
    if not weights.any():
        return False
    share = float((wins * weights).sum() / weights.sum())
    return share >= _TOLD_APART or len(word) < _FEWEST_TOLD


def word_margin(similarity: float, others: np.ndarray) -> float:
    """cos(image, caption) - max cos(image, variant): below 0, another word fits better."""
    return float(similarity - others.max())


def margin_after(
    exchanges: Exchanges,
    drawn: int,
    tried: np.ndarray,
    cosines: np.ndarray,
    similarity: float,
    similarity_after: float,
    count: int,
) -> float | None:
    """Return the word margin of the caption after exchange `drawn`: a known near miss.

    `tried` are the caption's encoded exchanges, with their `cosines`. Those of another word are
    assumed to change the cosine after the draw as much as before. Only encoded exchanges count;
    None if none of the `count` that seem best was encoded.
    """
    after, numbers, undone = exchanges.after(drawn)
    cosine_of = dict(zip(tried.tolist(), cosines.tolist(), strict=True))
    variants = []
    for place in after.best(count):
        number = int(numbers[place])
        if number < 0:
            variants.append(similarity)
        elif number in cosine_of:
            change = 0.0 if undone[place] else similarity_after - similarity
            variants.append(cosine_of[number] + change)
    return word_margin(similarity_after, np.array(variants)) if variants else None


@dataclass(frozen=True)
class NearMisses:
    """The share of captions with a wrong word, among those that are not wrong altogether.

    `null` gives the probability at a near-miss score. An estimator that `cannot_tell` leaves nearly
    any share possible, and no probabilities.
    """

    null: NullModel
    rate: Estimate

    @property
    def cannot_tell(self) -> bool:
        return not is_usable(self.rate)

    @classmethod
    def fit(cls, scores: Distributions, counted: float = 1.0) -> NearMisses | None:
        """Fit the share of captions with a wrong word to scores of pairs and known near misses.

        Both are of pairs that look matched by their cosine. An exchanged word may end that, so a
        share a of the known near misses is left, and a share p of the counted pairs is (p / a) / (p
        / a + 1 - p) of all. `counted` is the share of the matched pairs that look matched (see
        `counted_share`): if most do not, the few that do say nothing about the others, and any
        share is possible.
        """
        pairs, mismatches = scores.matched.size, scores.mismatched.size
        if mismatches < _FEWEST:
            return None
        null = NullModel.fit(scores.matched, scores.mismatched)
        left = mismatches / pairs

        def of_all(share: float) -> float:
            return share / (share + left * (1 - share))

        rate = Estimate(*map(of_all, null.noise_rate))
        return cls(null, rate if counted >= _LEAST_COUNTED else Estimate(rate.value, 0.0, 1.0))


def counted_share(cosines: Distributions, noise_rate: float) -> float:
    """Return the share of matched pairs whose cosine exceeds that of nearly all mismatches.

    If many captions fit many images, as with a few classes, known mismatches have the cosines of
    matched pairs, and hardly any pair stands out.
    """
    if not cosines.matched.size or not cosines.mismatched.size:
        return 0.0
    reached = np.cumsum(cosines.mismatched.counts) / cosines.mismatched.size
    above = cosines.matched.counts[reached > MISMATCHES_BELOW].sum() / cosines.matched.size
    return float(min(above / max(1 - noise_rate, 1e-9), 1.0))
