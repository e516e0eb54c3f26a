"""Find parts of captions that do not belong to the image, by comparison with known foreign ones.

Each part is replaced by one of similar length from another image's caption, a known foreign part.
Logistic regression learns to distinguish both from the corpus itself, on cosines: of the part with
the image, of the image with any part and of the part with any image, of the other parts of the
caption with the image and with this part. A foreign part also stands out from its caption.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from scipy.special import expit

from ncclean.base.estimates import Estimate
from ncclean.scoring.null import Histogram, NullModel
from ncclean.scoring.stats import Distributions
from ncclean.scoring.vague_rate import is_usable, tells_nothing

# The distributions that a shard adds to: of parts, and of captions with several.
PART_SCORE, PAIR_SCORE = "part_log_odds", "mean_part_similarity"
# Log-odds are counted in bins between plus and minus this.
_RANGE = 16.0
# Known foreign parts; fewer teach nothing.
_FEWEST = 40
_ROWS = 8192
_BLOCK = 2048
_NEAR = 32  # candidates of similar length, neighbours when sorted by length
# For Newton's method. A step this small changes no log-odds by `_STEP`.
_MOST_STEPS, _SMALLEST_STEP = 50, 1e-7
_RIDGE, _LEAST_DEVIATION = 1e-9, 1e-12
_STEP = 2.0**-10  # of the log-odds, far above what another order of additions changes


@dataclass(frozen=True)
class Parts:
    """P parts, such as sentences, of n captions with at least two, in the order of the captions.

    `image` (n, d) and `part` (P, d) are L2-normalised embeddings; `caption` (P,) is the index of
    each part's caption, and `images` (n,) the number of each caption's image. `text` (P,) is equal
    for equal parts. `length` (P,) may be in any unit.
    """

    image: torch.Tensor
    part: torch.Tensor
    caption: np.ndarray
    images: np.ndarray
    text: np.ndarray
    length: np.ndarray

    @functools.cached_property
    def cosines(self) -> torch.Tensor:
        """(P,) float64 cosines of the parts with their images."""
        pieces = [
            (self._images(rows) * self.part[rows].double()).sum(dim=1) for rows in self._slices()
        ]
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.float64)

    def log_odds(self, seed: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-odds of being foreign to the image, of parts and known foreign parts.

        A known foreign part is one of another image's caption, put in place of a part of similar
        length. Logistic regression learns to tell both kinds apart; each half of the images is
        judged by the model fitted to the other. Returns (P,) and (K,) float32; all NaN, and K = 0,
        if there are too few parts to learn from.
        """
        drawn = self._foreign(np.random.default_rng(list(seed)))
        is_foreign = self._is_foreign(drawn)
        # An image's captions are in one half: its first and second may be of different kinds.
        image = np.unique(self.images, return_inverse=True)[1][self.caption]
        halves = [image % 2 == half for half in (0, 1)]
        if min((is_foreign & half).sum() for half in halves) < _FEWEST // 2:
            return np.full(len(drawn), np.nan, np.float32), np.empty(0, np.float32)
        own, foreign = self._features(np.arange(len(drawn))), self._features(drawn)
        of_own, of_foreign = np.empty(len(drawn)), np.empty(len(drawn))
        for judged, learnt in (halves, halves[::-1]):
            judge = _judge(own[learnt], foreign[learnt & is_foreign])
            of_own[judged], of_foreign[judged] = judge(own[judged]), judge(foreign[judged])
        return _rounded(of_own), _rounded(of_foreign[is_foreign])

    def mean_cosines(self) -> Distributions:
        """Return histograms of the mean cosine of an image with the parts of a caption.

        `matched` counts each image with its own caption, `mismatched` with the captions of other
        images.
        """
        counts = self._by_caption(torch.ones_like(self.cosines))
        means = self._by_caption(self.part) / counts[:, None]
        images, captions = (torch.from_numpy(one) for one in (self.images, self._captions()))
        own = Histogram.of((self.image.double() * means).sum(dim=1))
        others = Histogram()
        for rows in torch.arange(len(means)).split(_BLOCK):
            place = rows.to(self.image.device)
            cosines = self.image[place].float() @ means[place].float().T
            same = (images[rows, None] == images[rows]) | (captions[rows, None] == captions[rows])
            others += Histogram.of(cosines[~same.to(cosines.device)])
        return Distributions(matched=own, mismatched=others)

    def _captions(self) -> np.ndarray:
        """Return (n,) numbers that are equal for captions with equal parts."""
        ends = np.cumsum(np.bincount(self.caption, minlength=len(self.image)))[:-1]
        numbers: dict[bytes, int] = {}
        texts = (part.tobytes() for part in np.split(self.text, ends))
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)

    @functools.cached_property
    def _numbers(self) -> torch.Tensor:
        return torch.from_numpy(self.caption).to(self.image.device)

    def _slices(self) -> Iterator[slice]:
        return (slice(begin, begin + _ROWS) for begin in range(0, len(self.part), _ROWS))

    def _images(self, rows: slice) -> torch.Tensor:
        return self.image[self._numbers[rows]].double()

    def _by_caption(self, values: torch.Tensor) -> torch.Tensor:
        """Sum (P,) or (P, d) values over the parts of each caption, in float64."""
        zeros = self.image.new_zeros((len(self.image), *values.shape[1:]), dtype=torch.float64)
        for rows in self._slices():
            zeros.index_add_(0, self._numbers[rows], values[rows].double())
        return zeros

    def _foreign(self, rng: np.random.Generator) -> np.ndarray:
        """Return (P,) the number of the part that replaces each: one of similar length."""
        order = np.lexsort((rng.random(len(self.length)), self.length))
        drawn = np.empty(len(order), np.int64)
        for begin in range(0, len(order), _NEAR):
            near = order[begin : begin + _NEAR]
            drawn[near] = np.roll(near, int(rng.integers(1, max(len(near), 2))))
        return drawn

    def _is_foreign(self, drawn: np.ndarray) -> np.ndarray:
        """Return (P,) whether no caption of the image has a part like the drawn one."""
        image = self.images[self.caption]
        texts = self.text.max(initial=0) + 1
        own_parts = image * texts + self.text
        return ~np.isin(image * texts + self.text[drawn], own_parts)

    def _features(self, drawn: np.ndarray) -> np.ndarray:
        """Return (P, 6) features of part `drawn[i]` in the place of part i."""
        places = torch.from_numpy(drawn).to(self.image.device)
        mean_image = self.image.mean(dim=0, dtype=torch.float64)
        mean = self.part.mean(dim=0, dtype=torch.float64)
        vectors, cosines = self._by_caption(self.part), self._by_caption(self.cosines)
        counts = self._by_caption(torch.ones_like(self.cosines))
        features = []
        for rows in self._slices():
            part, image, number = (
                self.part[places[rows]].double(), self._images(rows), self._numbers[rows]
            )  # fmt: skip
            count = counts[number] - 1
            others = vectors[number] - self.part[rows].double()
            centred = F.normalize(others - mean * count[:, None], dim=1)
            of_rows = (
                (image * part).sum(dim=1),
                image @ mean,
                part @ mean_image,
                (cosines[number] - self.cosines[rows]) / count,
                (centred * (part - mean)).sum(dim=1),
                (F.normalize(others, dim=1) * part).sum(dim=1),
            )
            features.append(torch.stack(of_rows, dim=1).float().cpu().numpy())
        return np.concatenate(features)


def _judge(own: np.ndarray, foreign: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Learn to tell (P, f) features of own parts from (K, f) of foreign ones; return the log-odds.

    Uses logistic regression of the standardised features by Newton's method. Both kinds have equal
    weight; the penalty is half the squared length of the slopes. It equals scikit-learn's, which
    takes half a second to load.
    """
    features = np.concatenate([own, foreign]).astype(np.float64)
    is_foreign = np.repeat([0.0, 1.0], [len(own), len(foreign)])
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    deviation[deviation < _LEAST_DEVIATION] = 1.0

    def standardised(values: np.ndarray) -> np.ndarray:
        scaled = (values.astype(np.float64) - mean) / deviation
        return np.concatenate([scaled, np.ones((len(values), 1))], axis=1)

    columns = standardised(features)
    weights = np.where(is_foreign, 0.5 / len(foreign), 0.5 / len(own)) * len(features)
    penalty = np.append(np.ones(features.shape[1]), 0.0)

    def loss(slopes: np.ndarray) -> float:
        margins = (columns @ slopes) * (1 - 2 * is_foreign)
        return float(weights @ np.logaddexp(0, margins) + penalty @ slopes**2 / 2)

    slopes = np.zeros(columns.shape[1])
    for _ in range(_MOST_STEPS):
        odds = expit(columns @ slopes)
        gradient = columns.T @ (weights * (odds - is_foreign)) + penalty * slopes
        curvature = (columns.T * (weights * odds * (1 - odds))) @ columns + np.diag(penalty)
        step = np.linalg.solve(curvature + _RIDGE * np.eye(len(slopes)), gradient)
        if np.abs(step).max() < _SMALLEST_STEP:
            break
        before, size = loss(slopes), 1.0
        while loss(slopes - size * step) > before and size > _SMALLEST_STEP:
            size /= 2
        slopes = slopes - size * step
    return lambda values: np.asarray(standardised(values) @ slopes)


def _rounded(values: np.ndarray) -> np.ndarray:
    return (np.round(values.clip(-_RANGE, _RANGE) / _STEP) * _STEP).astype(np.float32)


def part_distributions(own: np.ndarray, foreign: np.ndarray) -> Distributions:
    """Return histograms of the log-odds of a shard's parts and of its known foreign parts.

    The log-odds are negated and divided by 16, so that higher is cleaner, in [-1, 1]. NaN is left
    out.
    """
    own_odds = own[~np.isnan(own)]
    return Distributions(matched=_histogram(own_odds), mismatched=_histogram(foreign))


def _histogram(log_odds: np.ndarray) -> Histogram:
    return Histogram.of(torch.from_numpy(-log_odds / _RANGE))


@dataclass(frozen=True)
class ForeignParts:
    """The estimated share of caption parts that do not belong to their image.

    `null` is fitted to the log-odds of single parts. `pairs` is fitted to the mean cosine of a
    caption's parts, and gives the probability that all of them are foreign.
    """

    null: NullModel
    pairs: NullModel

    @classmethod
    def fit(cls, distributions: Distributions) -> ForeignParts | None:
        """Fit the share of foreign parts to a corpus's histograms; None if one is empty."""
        scores = [distributions.score(name) for name in (PART_SCORE, PAIR_SCORE)]
        if not all(score.matched.size and score.mismatched.size for score in scores):
            return None
        return cls(*(NullModel.fit(score.matched, score.mismatched) for score in scores))

    @property
    def rate(self) -> Estimate:
        """The share of foreign parts among all parts of captions that have several."""
        return self.null.noise_rate

    @property
    def cannot_tell(self) -> bool:
        """Whether the share of foreign parts is too uncertain for probabilities.

        So it is too if the share of captions with only foreign parts may be anything.
        """
        return not is_usable(self.rate) or tells_nothing(self.pairs.noise_rate)

    def probabilities(self, log_odds: np.ndarray) -> np.ndarray:
        """Return (P,) probabilities that parts are foreign in a pair that is otherwise matched.

        `log_odds` (P,) are those of `Parts.log_odds`.
        """
        score = torch.from_numpy(-log_odds.astype(np.float32) / _RANGE)
        return np.asarray(self.null.noise_probability(score))


def any_foreign(pair: np.ndarray, parts: np.ndarray, caption: np.ndarray) -> np.ndarray:
    """Return (n,) probabilities that a caption has at least one part that is foreign to its image.

    1 - (1 - p) prod_j (1 - q_j): `pair` (n,) is p, the probability that all parts are foreign,
    `parts` (P,) is q_j, that of a single part, and `caption` (P,) is the index of its caption.
    """
    right = np.ones(len(pair))
    np.multiply.at(right, caption, 1 - parts.astype(np.float64))
    return _either(pair, 1 - right)


def _either(pair: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return 1 - (1 - p)(1 - q), exactly p where q is 0."""
    return np.asarray(pair + (1 - pair.astype(np.float64)) * part, dtype=np.float32)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Return an Arrow table with the values of an existing column replaced."""
    return table.set_column(table.schema.get_field_index(name), name, values)


def with_part_probabilities(table: pa.Table, foreign: ForeignParts | None) -> pa.Table:
    """Fill the probabilities of foreign caption parts into a table that has `noise_probability`.

    For part j it is 1 - (1 - p)(1 - q_j), with p and q_j of `any_foreign`. A caption of one part
    gets the noise probability of its pair. The parts of others are null if `foreign` is None or
    cannot tell.
    """
    lists = table.column("part_log_odds").combine_chunks()
    counts = np.asarray(lists.value_lengths().fill_null(0))
    rows = np.repeat(np.arange(len(table)), counts)
    odds = lists.flatten()
    column = table.column("noise_probability").combine_chunks()
    no_pair, pair = np.asarray(column.is_null()), np.array(column.fill_null(0.0))
    is_whole = counts[rows] == 1
    is_null = np.asarray(odds.is_null())
    values = np.zeros(len(odds), np.float32)
    if foreign is None or foreign.cannot_tell:
        is_null = np.full(len(odds), True)
    else:
        values = foreign.probabilities(np.asarray(odds.fill_null(0.0)))
        mean = np.asarray(table.column(PAIR_SCORE).combine_chunks().fill_null(0.0))
        of_parts = np.asarray(foreign.pairs.noise_probability(torch.from_numpy(mean.copy())))
        pair = np.where(counts > 1, of_parts, pair)
    values[is_whole] = 0.0
    any_part = any_foreign(pair, np.where(is_null, 0.0, values), rows)
    values = _either(pair[rows], values)
    is_null = (is_null & ~is_whole) | no_pair[rows]
    lacking = no_pair | (counts == 0)
    lacking[rows[is_null]] = True
    by_caption = pa.ListArray.from_arrays(
        pa.array(np.cumsum([0, *counts]), pa.int32()),
        pa.array(values, pa.float32(), mask=is_null),
        mask=pa.array(counts == 0),
    )
    table = with_column(table, "part_noise_probabilities", by_caption)
    whole = pa.array(any_part, pa.float32(), mask=lacking)
    return with_column(table, "part_noise_probability", whole)
