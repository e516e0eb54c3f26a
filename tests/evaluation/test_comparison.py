"""Metrics of weighted images, and intervals with the coverage that they claim."""

import numpy as np
import pytest
from scipy.stats import bootstrap

from ncclean.evaluation.comparison import paired_differences
from ncclean.evaluation.results import Metric


def test_metric_by_hand():
    image = np.array([0, 0, 1, 2])
    hit = np.array([1, 0, 1, 1])
    one = Metric.of("one", image, hit)
    assert one.value().tolist() == [0.75]
    # Image 0 twice, image 1 not at all, image 2 once: 3 hits of 5 queries.
    assert one.value(np.array([[2.0, 0.0, 1.0]])).tolist() == [0.6]
    strata = Metric.of("strata", image, hit, np.array([0, 0, 0, 1]), scale=10)
    assert strata.value()[0] == pytest.approx(10 * (2 / 3 + 1) / 2)
    # Without image 2 its stratum is left out of the mean.
    assert strata.value(np.array([[1.0, 1.0, 0.0]]))[0] == pytest.approx(10 * 2 / 3)


def test_many_strata_take_the_sparse_way():
    rng = np.random.default_rng(0)
    image, hit, stratum = np.arange(300), rng.random(300) < 0.5, np.arange(300) % 100
    weights = rng.integers(0, 3, (4, 300)).astype(float)
    many = Metric.of("many", image, hit, stratum)
    by_hand = [
        np.mean([np.average(hit[s::100], weights=w[s::100]) for s in range(100) if w[s::100].sum()])
        for w in weights
    ]
    np.testing.assert_allclose(many.value(weights), by_hand)


def test_interval_is_that_of_the_normal_approximation():
    rng = np.random.default_rng(1)
    images = np.arange(2000)
    before = rng.random(2000) < 0.5
    after = before | (rng.random(2000) < 0.1)
    a, b = Metric.of("acc1", images, before), Metric.of("acc1", images, after)
    (found,) = paired_differences([a], [b], draws=1000)
    gained = (after & ~before).mean()
    assert found.difference == pytest.approx(gained)
    half = 1.96 * np.sqrt(gained * (1 - gained) / 2000)
    assert found.low == pytest.approx(gained - half, abs=0.15 * half)
    assert found.high == pytest.approx(gained + half, abs=0.15 * half)
    assert found.excludes_zero
    # The same seed, the same interval; of the other sign the other way round.
    assert paired_differences([a], [b], draws=1000) == [found]
    (back,) = paired_differences([b], [a], draws=1000)
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low), abs=1 / 2000)


def test_of_many_images_the_interval_is_that_of_a_paired_bootstrap_by_scipy():
    rng = np.random.default_rng(5)
    before, after = rng.random((2, 3000)) < np.array([[0.6], [0.65]])
    a, b = (Metric.of("acc1", np.arange(3000), hits) for hits in (before, after))
    (found,) = paired_differences([a], [b])
    plain = bootstrap(
        (before, after), lambda x, y, axis: y.mean(axis) - x.mean(axis), paired=True,
        vectorized=True, n_resamples=2000, method="percentile", random_state=rng,
    ).confidence_interval  # fmt: skip
    assert (found.low, found.high) == pytest.approx(tuple(plain), abs=0.003)


def test_captions_of_an_image_are_drawn_together():
    """Ten captions that always hit together are no more evidence than one."""
    rng = np.random.default_rng(2)
    hits = rng.random(200) < 0.5
    zero = np.zeros(200)

    def interval(captions):
        image = np.repeat(np.arange(200), captions)
        a = Metric.of("r", image, np.repeat(zero, captions))
        b = Metric.of("r", image, np.repeat(hits, captions))
        return paired_differences([a], [b], draws=300)[0]

    one, ten = interval(1), interval(10)
    assert (one.low, one.high) == pytest.approx((ten.low, ten.high))


def test_coverage_without_a_difference():
    """Two models of equal quality: about one interval in twenty excludes 0."""
    rng = np.random.default_rng(3)
    images = np.arange(150)
    excluded = 0
    for _ in range(100):
        a, b = (Metric.of("acc1", images, rng.random(150) < 0.7) for _ in range(2))
        excluded += paired_differences([a], [b], draws=200)[0].excludes_zero
    assert 1 <= excluded <= 13


def test_what_does_not_correspond():
    a, b = Metric.of("x", np.arange(3), np.ones(3)), Metric.of("x", np.arange(4), np.ones(4))
    with pytest.raises(ValueError, match="do not match"):
        paired_differences([a], [b])
    one = Metric.of("x", np.zeros(1, dtype=int), np.ones(1))
    with pytest.raises(ValueError, match="two images"):
        paired_differences([one], [one])


@pytest.mark.parametrize(
    ("images", "right_a", "right_b"), [(10, 0.9, 0.9), (60, 0.98, 1.0), (200, 0.99, 0.995)]
)
def test_coverage_where_few_images_tell_the_models_apart(images, right_a, right_b):
    rng = np.random.default_rng(4)
    numbers, covered, trials = np.arange(images), 0, 150
    for _ in range(trials):
        a, b = (
            Metric.of("acc1", numbers, rng.random(images) < right) for right in (right_a, right_b)
        )
        (found,) = paired_differences([a], [b], draws=300)
        assert found.low < found.high
        covered += found.low <= right_b - right_a <= found.high
    assert covered >= 0.93 * trials


def test_a_few_images_are_no_proof():
    """Four of four by chance: once in sixteen times, if the models are equally good."""
    numbers = np.arange(4)
    a, b = (Metric.of("acc1", numbers, np.full(4, hit)) for hit in (0, 1))
    (found,) = paired_differences([a], [b])
    assert (found.difference, found.excludes_zero) == (1.0, False)
