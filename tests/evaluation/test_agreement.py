"""Kendall's tau and pairwise accuracy by hand, with intervals that cover."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import kendalltau

from ncclean.evaluation import agreement as module
from ncclean.evaluation.agreement import agreement

NAN = math.nan


def test_by_hand():
    score = np.array([0.1, 0.2, 0.3, 0.4, 0.4])
    ratings = np.array([[1.0], [3.0], [2.0], [4.0], [4.0]])
    found = agreement(score, ratings, np.array([0, 0, 1, 1, 1]))
    # Of ten pairs 8 are concordant, (2, 3) is discordant and the last one is tied in both.
    assert found.tau_b.value == pytest.approx(7 / 9)
    assert found.tau_c.value == pytest.approx(2 * 7 / (25 * 3 / 4))
    # Within images: (1, 2), (3, 4), (3, 5); the last two are rated alike.
    assert found.pairwise_accuracy.value == 1
    assert (found.pairs, found.judgements, found.captions, found.images) == (3, 5, 5, 2)


def test_judges_in_another_order_rate_alike():
    ratings = np.array([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.2, 0.2, 0.2], [0.4, 0.5, 0.6]])
    score = np.array([3.0, 2.0, 1.0, 4.0, 3.0, 2.0, 1.0, 4.0])
    found = agreement(score, np.vstack([ratings, ratings]), np.repeat([0, 1], 4))
    assert (found.pairs, found.pairwise_accuracy.value) == (6, 1)


def test_ties_of_the_score_count_half():
    score = np.array([0.5, 0.5, 0.1, 0.9])
    found = agreement(score, np.array([[1.0], [2.0], [2.0], [1.0]]), np.array([0, 0, 1, 1]))
    assert found.pairwise_accuracy.value == pytest.approx(0.25)


def test_each_judge_counts_and_a_missing_rating_does_not():
    rng = np.random.default_rng(0)
    score = rng.normal(size=40)
    ratings = np.round(score[:, None] + rng.normal(size=(40, 3)))
    ratings[3, 1] = ratings[7, 0] = ratings[7, 2] = NAN
    found = agreement(score, ratings, np.arange(40) // 4)
    rows = [(score[n], r) for n in range(40) for r in ratings[n] if not math.isnan(r)]
    x, y = map(np.array, zip(*rows, strict=True))
    assert found.judgements == 117
    for variant, estimate in (("b", found.tau_b), ("c", found.tau_c)):
        expected = kendalltau(x, y, variant=variant).statistic
        assert estimate.value == pytest.approx(expected)
    mean = np.nanmean(ratings, axis=1)
    pairs = [
        (score[a] - score[b]) * (mean[a] - mean[b]) > 0
        for a in range(40) for b in range(a)
        if a // 4 == b // 4 and mean[a] != mean[b]
    ]  # fmt: skip
    assert found.pairs == len(pairs)
    assert found.pairwise_accuracy.value == pytest.approx(np.mean(pairs))


def test_the_order_of_rows_does_not_matter():
    rng = np.random.default_rng(1)
    score, ratings, image = (
        rng.normal(size=60),
        rng.integers(1, 5, (60, 1)) * 1.0,
        np.arange(60) // 5,
    )
    order = rng.permutation(60)
    assert agreement(score, ratings, image) == agreement(score[order], ratings[order], image[order])


@pytest.mark.slow
def test_intervals_cover_the_truth_although_judgements_of_an_image_depend_on_each_other(
    monkeypatch,
):
    """Each image has a mood that moves its score and its ratings."""
    rng = np.random.default_rng(2)

    def draw(images):
        mood = np.repeat(2 * rng.normal(size=images), 6)
        quality = rng.normal(size=6 * images)
        score = quality + mood + rng.normal(size=6 * images)
        ratings = np.clip(np.round(quality + mood), -3, 3)[:, None]
        return score, ratings, np.repeat(np.arange(images), 6)

    with monkeypatch.context() as patch:
        patch.setattr(module, "MOST_GROUPS", 2)  # how certain the truth is does not matter
        truth = agreement(*draw(2000))
    names = ("tau_b", "tau_c", "pairwise_accuracy")
    hits = dict.fromkeys(names, 0)
    trials = 100
    for _ in range(trials):
        found = agreement(*draw(30))
        for name in names:
            estimate = getattr(found, name)
            hits[name] += estimate.low <= getattr(truth, name).value <= estimate.high
    for name in names:
        assert 0.89 <= hits[name] / trials <= 0.99, name
    # As if every judgement were of an image of its own.
    score, ratings, image = draw(80)
    apart, together = (
        agreement(score, ratings, numbers).tau_b for numbers in (np.arange(len(image)), image)
    )
    assert (apart.high - apart.low) < 0.9 * (together.high - together.low)


def test_many_images_are_left_out_in_groups(monkeypatch):
    rng = np.random.default_rng(3)
    score = rng.normal(size=1200)
    ratings, image = np.round(score + rng.normal(size=1200))[:, None], np.arange(1200) // 4
    alone = agreement(score, ratings, image)
    monkeypatch.setattr(module, "MOST_GROUPS", 50)
    grouped = agreement(score, ratings, image)
    assert grouped.tau_b.value == alone.tau_b.value
    widths = [one.tau_b.high - one.tau_b.low for one in (alone, grouped)]
    assert widths[1] == pytest.approx(widths[0], rel=0.35)


def test_no_order_to_agree_with():
    two = np.array([0, 1])
    with pytest.raises(ValueError, match="two images"):
        agreement(np.array([1.0, 2.0]), np.array([[1.0], [2.0]]), np.array([0, 0]))
    with pytest.raises(ValueError, match="all ratings are equal"):
        agreement(np.array([1.0, 2.0]), np.array([[1.0], [1.0]]), two)
    with pytest.raises(ValueError, match="all scores are equal"):
        agreement(np.array([1.0, 1.0]), np.array([[1.0], [2.0]]), two)


def test_without_pairs_inside_an_image_there_is_no_pairwise_accuracy():
    found = agreement(np.arange(9.0), np.array([[1.0], [2.0], [3.0]] * 3), np.arange(9))
    assert math.isnan(found.pairwise_accuracy.value)
    assert not found.pairwise_accuracy.has_interval
    assert found.tau_b.has_interval


@pytest.mark.parametrize(("images", "right"), [(5, 0.9), (20, 0.95), (100, 0.98)])
def test_intervals_of_the_accuracy_cover_it_where_nearly_all_pairs_are_ordered_right(
    monkeypatch, images, right
):
    # A tau takes nearly all of the time, and is not looked at.
    monkeypatch.setattr(module, "kendalltau", lambda *_, variant: SimpleNamespace(statistic=0.0))
    rng = np.random.default_rng(4)
    covered, trials = 0, 100
    for _ in range(trials):
        score = np.zeros((images, 2))
        score[:, 1] = np.where(rng.random(images) < right, 1, -1)
        score += rng.normal(size=(images, 1))
        ratings = np.tile([0.0, 1.0], images)[:, None]
        found = agreement(score.ravel(), ratings, np.repeat(np.arange(images), 2))
        covered += found.pairwise_accuracy.low <= right <= found.pairwise_accuracy.high
    assert covered >= 0.93 * trials


def test_of_a_perfect_order_nothing_says_how_certain_it_is():
    found = agreement(np.arange(10.0), np.arange(10.0)[:, None], np.arange(10) // 2)
    assert found.tau_b.value == pytest.approx(1)
    assert not found.tau_b.has_interval
    assert not found.tau_c.has_interval
    # Five of five: the exact interval begins at .478.
    assert found.pairwise_accuracy.low == pytest.approx(0.478, abs=0.03)
    assert found.pairwise_accuracy.high == 1
