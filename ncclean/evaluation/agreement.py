"""Measure a score's agreement with people: Kendall's tau and pairwise accuracy, with intervals.

tau_b = (C - D) / sqrt((C + D + Tx) (C + D + Ty)) and tau_c = 2 (C - D) / (n^2 (m - 1) / m), with C
concordant and D discordant pairs of judgements, Tx and Ty those tied in one of the two, and m the
smaller number of distinct values. The literature on Flickr8k reports tau_c for its experts and
tau_b for CrowdFlower [1].

The judgements of one image are not independent, so the intervals are those of a jackknife that
leaves out whole images [2]. A bootstrap would draw an image twice, and a copy ties with itself. A
jackknife has no width if all images agree, though others may not. The pairwise accuracy therefore
gets two more images, one ordered right and one wrong; a tau that no image changes has no interval.

[1] Hessel et al. 2021, "CLIPScore: A Reference-free Evaluation Metric for Image Captioning".
[2] Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 11; in groups of images
    as by Kott 2001, "The Delete-a-Group Jackknife".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import kendalltau
from scipy.stats import t as student_t

from ncclean.base.estimates import Estimate

# Each group costs another Kendall's tau: 10 ms for 47,000 judgements.
MOST_GROUPS = 500
_BOUNDS = np.array([[-1.0, 1.0], [-1.0, 1.0], [0.0, 1.0]])
_TAIL = 0.975
_ROUNDING = 1e-20  # a variance up to this is rounding
_DECIMALS = 9  # of a mean rating


@dataclass(frozen=True)
class Agreement:
    """The agreement of a score with people's judgements of captions: rank correlation and accuracy.

    There are `judgements` of `captions` of `images`. `pairwise_accuracy` is over the `pairs` of
    captions of one image that people rate differently: the share that the score orders as they do,
    ties counting half. It is NaN without such pairs.
    """

    tau_b: Estimate
    tau_c: Estimate
    pairwise_accuracy: Estimate
    judgements: int
    captions: int
    images: int
    pairs: int


def agreement(score: np.ndarray, ratings: np.ndarray, image: np.ndarray) -> Agreement:
    """Compare (N,) scores with (N, J) ratings of J judges; `image` numbers the (N,) images.

    A NaN rating is missing. Each rating is a separate judgement for tau, as in [1]; pairwise
    accuracy compares the mean ratings. Raises `ValueError` without scores of two images, or if all
    scores or all ratings are equal: then there is no order to agree with. A tau that no image
    changes, such as 1 of few, has no interval.
    """
    row, judge = np.nonzero(~np.isnan(ratings))
    x, y, owner = score[row], ratings[row, judge], image[row]
    images = np.unique(owner)
    if len(images) < 2:
        raise ValueError("agreement needs judgements of at least two images")
    for what, values in (("scores", x), ("ratings", y)):
        if (values == values[0]).all():
            raise ValueError(f"all {what} are equal, so there is no order to agree with")
    rated = np.unique(row)
    right, pairs = _ordered_pairs(score[rated], mean_rating(ratings[rated]), image[rated])
    paired = len(np.unique(image[rated][pairs > 0]))
    group = _groups(image, images)
    right, pairs = np.bincount(group[rated], right), np.bincount(group[rated], pairs)
    group = group[row]

    def statistics(left_out: int | None = None) -> np.ndarray:
        rows = slice(None) if left_out is None else group != left_out
        compared = pairs.sum() - (0 if left_out is None else pairs[left_out])
        hits = right.sum() - (0 if left_out is None else right[left_out])
        taus = (kendalltau(x[rows], y[rows], variant=variant).statistic for variant in "bc")
        return np.array([*taus, hits / compared if compared else np.nan])

    values = statistics()
    count = len(pairs)
    replicates = np.array([statistics(number) for number in range(count)])
    spread = (count - 1) / count * ((replicates - replicates.mean(axis=0)) ** 2).sum(axis=0)
    centre, extra = _with_two_more(values[2], paired)
    middle = np.array([*values[:2], centre])
    spread = np.array([*np.where(spread[:2] > _ROUNDING, spread[:2], np.nan), spread[2] + extra])
    half = student_t.ppf(_TAIL, count - 1) * np.sqrt(spread)
    # Two more images may move the middle past the value.
    low = np.minimum(np.clip(middle - half, *_BOUNDS.T), values)
    high = np.maximum(np.clip(middle + half, *_BOUNDS.T), values)
    tau_b, tau_c, accuracy = (
        Estimate(*map(float, ends)) for ends in zip(values, low, high, strict=True)
    )
    return Agreement(tau_b, tau_c, accuracy, len(x), len(rated), len(images), round(pairs.sum()))


def mean_rating(ratings: np.ndarray) -> np.ndarray:
    """Return the (N,) means of (N, J) ratings, equal for the same ratings in another order.

    Their sums may differ in the last bit: .1 + .2 + .3 and .3 + .2 + .1.
    """
    mean: np.ndarray = np.nanmean(ratings, axis=1).round(_DECIMALS)
    return mean


def _with_two_more(accuracy: float, images: int) -> tuple[float, float]:
    """Return the accuracy with two more images, one ordered right and one not, and its variance.

    `images` is the number of those with pairs that people rate differently.
    """
    centre = (images * accuracy + 1) / (images + 2)
    return centre, (accuracy**2 + (1 - accuracy) ** 2) / (images + 2) ** 2


def _ordered_pairs(
    score: np.ndarray, rating: np.ndarray, image: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count (N,) pairs of each row with later rows of its image: rightly ordered ones, and all.

    Rows that people rate alike form no pair.
    """
    right, pairs = np.zeros(len(score)), np.zeros(len(score))
    order = np.argsort(image, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(image[order])) + 1):
        for position, row in enumerate(rows[:-1]):
            others = rows[position + 1 :]
            people = np.sign(rating[row] - rating[others])
            same = np.sign(score[row] - score[others]) * people
            pairs[row] = np.count_nonzero(people)
            right[row] = ((same + 1) / 2)[people != 0].sum()
    return right, pairs


def _groups(image: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return (N,) the group of each row from 0: that of its image, random if there are many."""
    count = min(len(images), MOST_GROUPS)
    number = np.searchsorted(images, image)
    drawn: np.ndarray = np.random.default_rng(0).permutation(np.arange(len(images)) % count)
    return drawn[np.minimum(number, len(images) - 1)]
