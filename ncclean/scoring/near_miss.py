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
    """A ridge regression of the cosine of a pair on the embedding of its caption alone.

    The penalty is the one of smallest leave-one-out error. The residual of pair i is computed
    without that pair: e_i / (1 - h_ii), where e is the residual and h the hat matrix of the fit to
    all pairs.
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
        """Fit the regression to n captions (n, d) and the (n,) cosines with their images."""
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
        """Return (m,) cosines of changed captions with their images, minus the expected ones.

        `text` (m, d) are the changed captions, `rows` (m,) the fitted pairs that they replace. Each
        is left out of the fit, since its caption is nearly the same.
        """
        places = (text.double() - self._centre) @ self._axes
        shared = (places * self._shrinkage * self._places[rows]).sum(dim=1) + 1 / len(self._places)
        expected = self._level + places @ self._slopes - shared * self.residual[rows]
        return similarity.double() - expected


@dataclass(frozen=True)
class Exchanges:
    """The c possible exchanges of one word of a caption, with the estimated gain in cosine.

    `places` (c,) is the index of the exchanged word. `gains` (c,) is <v, e(new word)> - <v, e(old
    word)>, with the image embedding v and the embeddings e of single words. Two exchanges of the
    same word exclude each other.
    """

    places: np.ndarray
    gains: np.ndarray

    def best(self, count: int) -> np.ndarray:
        """Return the indices of the `count` exchanges of largest estimated gain, best first."""
        return np.argsort(-self.gains, kind="stable")[:count]

    def after(self, drawn: int) -> tuple[Exchanges, np.ndarray, np.ndarray]:
        """Return the exchanges of the caption after exchange `drawn`; its reversal is the last.

        Also returns the index of each in this object, -1 for the reversal, and whether it replaces
        the word that `drawn` put in.
        """
        others = np.delete(np.arange(len(self.places)), drawn)
        undone = self.places[others] == self.places[drawn]
        gains = self.gains[others] - np.where(undone, self.gains[drawn], 0.0)
        places = np.append(self.places[others], self.places[drawn])
        after = Exchanges(places, np.append(gains, -self.gains[drawn]))
        return after, np.append(others, -1), np.append(undone, True)


def may_be_told_apart(fit: np.ndarray, word: np.ndarray, meaning: np.ndarray) -> bool:
    """Check whether images tell the words of a class apart, unlike `the` and `a`, or `of` and `in`.

    `fit` (m, c) is how well each of c words fits the images of m captions, centred over these.
    `word` (m,) is the index of each caption's word, `meaning` (c,) is equal for synonyms. True if
    the own word fits better in 60 % of the comparisons with others, weighted by frequency, or if
    there are too few captions to tell. False if all captions have the same word or synonyms of it.
    """
    own_fit = np.take_along_axis(fit, word[:, None], axis=1)
    wins = (own_fit > fit) + (own_fit == fit) / 2
    weights = np.bincount(word, minlength=fit.shape[1]) * (meaning[word][:, None] != meaning)
    if not weights.any():
        return False
    share = float((wins * weights).sum() / weights.sum())
    return share >= _TOLD_APART or len(word) < _FEWEST_TOLD


def word_margin(similarity: float, others: np.ndarray) -> float:
    """Return a pair's cosine minus the best cosine of variants with one exchanged word.

    Below 0, another word fits the image better.
    """
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
    """Return the word margin that a caption has after exchange `drawn`, as a known near miss.

    `tried` are the exchanges that were encoded, and `cosines` their cosines with the image;
    `similarity` is the cosine before `drawn`, `similarity_after` the one after. An exchange of
    another word is assumed to change the cosine by as much after the draw as before. Only the
    `count` exchanges of largest estimated gain count, if encoded or the reversal of `drawn`; None
    if there is no such one.
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
    """The estimated share of captions with one wrong word, among pairs that are not mismatched.

    `null` maps a near-miss score to a probability. There are no probabilities if it `cannot_tell`:
    nearly any share is possible.
    """

    null: NullModel
    rate: Estimate

    @property
    def cannot_tell(self) -> bool:
        return not is_usable(self.rate)

    @classmethod
    def fit(cls, scores: Distributions, counted: float = 1.0) -> NearMisses | None:
        """Fit the share of captions with a wrong word; None for too few known near misses.

        `scores` holds the near-miss scores of pairs and of known near misses, both only of pairs
        that look matched by their cosine. A wrong word may end that: a share a of the known near
        misses is left. So a share p of the counted pairs is (p / a) / (p / a + 1 - p) of all.
        `counted` is the share of matched pairs that look matched (see `counted_share`): if it is
        too small, those few do not represent the others, and the interval is [0, 1].
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
    """Return the share of matched pairs whose cosine exceeds that of 99 % of the known mismatches.

    It is small if many captions fit many images, as with a few classes.
    """
    if not cosines.matched.size or not cosines.mismatched.size:
        return 0.0
    reached = np.cumsum(cosines.mismatched.counts) / cosines.mismatched.size
    above = cosines.matched.counts[reached > MISMATCHES_BELOW].sum() / cosines.matched.size
    return float(min(above / max(1 - noise_rate, 1e-9), 1.0))
