r"""Estimate a group's share of wrong pairs by its own null: its images with other captions.

A probability that was fitted to the corpus is high where pairs are wrong, and where the estimator
is worse at a kind of caption or image. The group's own mismatches distinguish the two: with them,
the noise rate of `ncclean.scoring.null` treats the group as a corpus.

The origin of wrong partners is unknown. Captions of the group's topic fit its images better than
those of the corpus do, so the known mismatches are in turn

- its images with its captions,
- its images with captions from outside, if the group consists of images,
- images from outside with its captions, if it consists of captions,

and the group's interval contains the intervals of all of these.

If nothing looks matched, that estimate is from 0 to 1: all pairs are wrong, or the estimator sees
nothing there. The first is assumed if the pairs' cosines are distributed like the mismatches':
F(cosine) has a mean of 1/2, and of 9/20 below 9/10, where F is the mismatches' distribution. An
estimator that recognises right pairs, however weakly, moves both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import duckdb
import numpy as np
from scipy.sparse import csr_matrix
from scipy.stats import norm

from ncclean.base.estimates import UNKNOWN, Estimate
from ncclean.explaining.embedded import MOST_PAIRS, Embedded
from ncclean.explaining.kinds import IMAGE, TEXT
from ncclean.scoring.null import BINS, NullModel
from ncclean.storage.catalog import columns_of

NOT_KNOWN = Estimate(math.nan, 0.0, 1.0)
_MOST = 1500  # pairs on a side of the matrix of mismatches
_OUTSIDE = 3000  # pairs sampled from the corpus for the outside of a group
_FEWEST = 40
_SMALL = 0.1
_BELOW = 0.9
_LEAST_AUROC = 0.75  # of right pairs, in a group assumed to be entirely wrong
_Z = 1.96
_APART = 2.6  # standard errors, of a mean of quantiles


class Verdict(NamedTuple):
    """The share of wrong pairs in a group and outside it, and a test of whether it is higher.

    `log_p` is the log p-value, 0 if the shares are not known. `separation` is how often a right
    pair of the group has a higher cosine than a mismatch (AUROC).
    """

    rate: Estimate
    outside: Estimate
    log_p: float
    separation: float


class _Fit(NamedTuple):
    rate: Estimate
    separation: float


@dataclass(frozen=True)
class OwnNulls:
    """A sample of S pairs with their embeddings, to judge groups by their own known mismatches.

    `image` and `text` are (S, d). `members` (S, K) tells which pairs are in each of K groups,
    `is_outside` (S,) marks a sample of the whole corpus. `photographs` and `captions` (S,) number
    the samples and the distinct captions.
    """

    image: np.ndarray
    text: np.ndarray
    members: csr_matrix
    is_outside: np.ndarray
    photographs: np.ndarray
    captions: np.ndarray
    _outside: dict[tuple[int, ...], Estimate] = field(default_factory=dict)

    @classmethod
    def read(
        cls, connection: duckdb.DuckDBPyConnection, groups: int, embedded: Embedded
    ) -> OwnNulls | None:
        """Read embeddings of a sample of the view `pairs` and of the groups in the table `members`.

        None if the pairs have no keys, or none has embeddings.
        """
        if not {"key", "caption_number"} <= set(columns_of(connection, "pairs")):
            return None
        of_group = max(MOST_PAIRS // max(2 * groups, 1), 2 * _FEWEST)
        ranked = (
            "SELECT place, member, row_number() OVER (PARTITION BY member ORDER BY hash(place)) "
            "AS rank FROM (SELECT place, member FROM members UNION ALL SELECT place, -1 FROM pairs)"
        )
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE sampled AS SELECT place, bool_or(member < 0) AS outside "
            f"FROM ({ranked}) WHERE rank <= if(member < 0, {_OUTSIDE}, least({of_group}, {_MOST})) "
            f"GROUP BY place ORDER BY min(rank) LIMIT {MOST_PAIRS}"
        )
        wanted = "SELECT 0 AS member, pairs.* FROM pairs SEMI JOIN sampled USING (place)"
        vectors = embedded.vectors(connection, wanted)
        if not vectors:
            return None
        places, image, text = vectors[0]
        rows = connection.execute(
            "SELECT place, outside, dense_rank() OVER (ORDER BY shard, key) AS photograph "
            "FROM sampled JOIN pairs USING (place) ORDER BY place"
        ).fetchnumpy()
        positions = np.searchsorted(rows["place"], places)
        joined = connection.execute(
            "SELECT place, member FROM members SEMI JOIN sampled USING (place)"
        ).fetchnumpy()
        connection.execute("DROP TABLE sampled")
        position = np.searchsorted(places, joined["place"]).clip(max=len(places) - 1)
        is_sampled = places[position] == joined["place"]
        members = csr_matrix(
            (np.ones(is_sampled.sum(), bool), (position[is_sampled], joined["member"][is_sampled])),
            shape=(len(places), groups),
        )
        _, captions = np.unique(text, axis=0, return_inverse=True)
        return cls(
            image, text, members, rows["outside"][positions], rows["photograph"][positions],
            captions.ravel(),
        )  # fmt: skip

    def of(self, groups: Sequence[int]) -> np.ndarray:
        """Return (S,) bool: whether each pair of the sample is in one of the groups."""
        is_member: np.ndarray = np.asarray(self.members[:, list(groups)].sum(axis=1)).ravel() > 0
        return is_member

    def verdict(self, group: int, made_of: str, without: Sequence[int]) -> Verdict:
        """Estimate the share of wrong pairs in a group, without its pairs in other groups.

        These are the groups `without`. The null is fitted to mismatches of the group's images with
        its captions; if it is selected by image or by pair, also with captions from outside; if by
        text or by pair, also of images from outside with its captions (`made_of`). The lowest rate
        counts, with an interval that contains those of all.
        """
        is_left, is_member = ~self.of(without), self.of([group])
        inside = _some(is_left & is_member)
        outside = _some(is_left & ~is_member & self.is_outside)
        # A small group hardly moves the rate of all others.
        is_small = len(inside) < _SMALL * len(outside)
        outside_rate = self.outside(without) if is_small else self._rate(outside)
        sides = [(inside, inside)]
        sides += [(inside, outside)] if made_of != TEXT else []
        sides += [(outside, inside)] if made_of != IMAGE else []
        fits = [fit for side in sides if (fit := self._fit(inside, *side)) is not None]
        if not fits:
            return Verdict(NOT_KNOWN, outside_rate, 0.0, 0.5)
        rates, separation = [fit.rate for fit in fits], min(fit.separation for fit in fits)
        low, high = min(rate.low for rate in rates), max(rate.high for rate in rates)
        if not outside_rate.is_known or not all(rate.is_known for rate in rates):
            return Verdict(Estimate(math.nan, low, high), outside_rate, 0.0, separation)
        value = min(rate.value for rate in rates)
        z = min(_deviations(rate, outside_rate) for rate in rates)
        rate = Estimate(value, low, high)
        return Verdict(rate, outside_rate, float(norm.logsf(z)), separation)

    def outside(self, without: Sequence[int]) -> Estimate:
        """Estimate the corpus's share of wrong pairs outside the groups `without`."""
        key = tuple(sorted(without))
        if key not in self._outside:
            self._outside[key] = self._rate(_some(self.is_outside & ~self.of(without)))
        return self._outside[key]

    def _rate(self, rows: np.ndarray) -> Estimate:
        fit = self._fit(rows, rows, rows)
        return UNKNOWN if fit is None else fit.rate

    def _fit(self, rows: np.ndarray, images: np.ndarray, texts: np.ndarray) -> _Fit | None:
        """Fit pairs by the cosines of images and captions; None for too few."""
        if min(map(len, (rows, images, texts))) < _FEWEST:
            return None
        own = np.einsum("nd,nd->n", self.image[rows], self.text[rows], dtype=np.float32)
        cosines = self.image[images].astype(np.float32) @ self.text[texts].astype(np.float32).T
        are_known = self.captions[images][:, None] != self.captions[texts]
        are_known &= self.photographs[images][:, None] != self.photographs[texts]
        if not are_known.any():
            return None
        null = _histogram(cosines[are_known])
        means = [
            _histogram((cosines * are_known).sum(axis=side)[some] / are_known.sum(axis=side)[some])
            for side in (0, 1)
            for some in [are_known.any(axis=side)]
        ]
        # Groups are compared as samples: by chance, one has more wrong pairs than another.
        model = NullModel.fit(_histogram(own), null, means, at_hand=False)
        if model.noise_rate.low > 0 or model.noise_rate.high < 1:
            return _Fit(model.noise_rate, model.separation)
        return _Fit(_all_wrong(own, np.sort(cosines[are_known])) or NOT_KNOWN, 0.5)


def _deviations(rate: Estimate, outside: Estimate) -> float:
    """Return by how many standard errors a rate exceeds another, from their facing ends."""
    error = math.hypot(rate.value - rate.low, outside.high - outside.value) / _Z
    return (rate.value - outside.value) / max(error, 1e-6)


def _all_wrong(own: np.ndarray, mismatched: np.ndarray) -> Estimate | None:
    """Return the share of wrong pairs if all look like mismatches, else None.

    The lower end assumes that a right pair is above a mismatch as often as `_LEAST_AUROC`.
    """
    quantiles = np.searchsorted(mismatched, own) / len(mismatched)
    below = quantiles[quantiles < _BELOW]
    error = 1 / math.sqrt(12 * len(own))
    if quantiles.mean() > 0.5 + _APART * error or len(below) < 0.5 * len(own):
        return None
    if below.mean() > _BELOW / 2 + _APART * _BELOW / math.sqrt(12 * len(below)):
        return None
    matched = max(float(quantiles.mean()) + _Z * error - 0.5, 0.0) / (_LEAST_AUROC - 0.5)
    rate = min(len(below) / len(own) / _BELOW, 1.0)
    return Estimate(rate, min(max(1 - matched, 0.0), rate), 1.0)


def _some(are_wanted: np.ndarray) -> np.ndarray:
    """Return places of at most `_MOST` of the wanted pairs, spread over the corpus."""
    places = np.flatnonzero(are_wanted)
    return places[:: max(-(-len(places) // _MOST), 1)]


def _histogram(cosines: np.ndarray) -> np.ndarray:
    """(BINS,) counts over equal bins of [-1, 1]."""
    bins = ((cosines + 1) * (BINS / 2)).astype(int).clip(0, BINS - 1)
    return np.bincount(bins, minlength=BINS)
