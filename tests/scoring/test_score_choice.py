"""The score to calibrate on, where wrong captions are of the corpus and where they are not."""

import dataclasses

import numpy as np
import pytest
import torch

from ncclean.base.estimates import Estimate
from ncclean.scoring.columns import score_pairs
from ncclean.scoring.null import Histogram, NullModel
from ncclean.scoring.score_choice import better_score, excess_below
from ncclean.scoring.stats import Distributions


def histogram(values):
    return Histogram.of(torch.tensor(values))


def distributions(matched):
    mismatched = np.linspace(-0.5, 0.5, 1001)
    return Distributions(matched=histogram(matched), mismatched=histogram(mismatched))


def test_excess_by_hand():
    """The quantiles of the known mismatches go from -.45 to 0."""
    cosine = distributions([-0.39] * 4 + [0.2] * 20)
    other = distributions([-0.39] * 11 + [0.2] * 13)
    # Below -.45 and -.4 lie none, below the eight others 4 and 11.
    assert excess_below(cosine, other) == pytest.approx(0.8 * (11 - 4) / (4 + 11 + 1) ** 0.5)
    assert excess_below(other, cosine) == pytest.approx(-0.8 * 7 / 4)
    assert excess_below(cosine, cosine) == 0


def null(overlap=0.1, low=0.1, high=0.3):
    nothing = np.zeros(4096)
    return NullModel(Estimate(0.2, low, high), 0.9, 0.1, overlap, nothing, nothing)


@pytest.mark.parametrize(
    ("excess", "gain", "rates", "expected"),
    [
        (0, 2.9, {}, "similarity"),
        (0, 3.1, {}, "neg_clip_loss"),  # expected to be wrong on three pairs fewer
        (7, -5, {}, "neg_clip_loss"),  # own images among the rivals
        (2, -5, {}, "similarity"),
        (7, 5, {"noise_rate": Estimate(0.45, 0.4, 0.5)}, "similarity"),
    ],
)
def test_which_score_is_taken(excess, gain, rates, expected):
    both = distributions([-0.39] * 4 + [0.2] * 96)
    both.scores["neg_clip_loss"] = distributions([-0.39] * (4 + excess) + [0.2] * (96 - excess))
    assert both.matched.size == 100
    other = dataclasses.replace(null(0.1 - gain / 100), **rates)
    assert better_score(both, null(), other) == expected


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_own_images_among_the_rivals_are_seen(share):
    """Pairs that a strong model tells apart: wrong captions of each other, or from elsewhere."""
    rng = np.random.default_rng(round(100 * share))
    common = rng.normal(size=(2_000, 64))
    image, text = (common + 0.4 * rng.normal(size=common.shape) for _ in range(2))
    image, text = (
        torch.from_numpy(side / np.linalg.norm(side, axis=1, keepdims=True)).float()
        for side in (image, text)
    )
    count = round(share * 1_000)
    excess = {}
    for kind in ("of the corpus", "from elsewhere"):
        captions = text[:1_000].clone()
        captions[:count] = text[:count].roll(1, 0) if kind == "of the corpus" else text[-count:]
        found = score_pairs(
            image[:1_000], captions, scale=100.0, shard="0", block_size=2048,
            forget_percent=10.0, seed=0,
        ).distributions  # fmt: skip
        excess[kind] = excess_below(found, found.score("neg_clip_loss"))
    assert excess["of the corpus"] > 1
    assert abs(excess["from elsewhere"]) < 0.5
