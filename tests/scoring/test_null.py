import dataclasses
import math

import numpy as np
import pytest
import torch

from ncclean.base.estimates import Estimate
from ncclean.scoring.blocks import BlockStatistics
from ncclean.scoring.null import (
    _CENTRES,
    BINS,
    Histogram,
    NullModel,
    _bandwidth,
    _overlap,
    _variance,
)


def mixture(pairs, rate, seed=0):
    """Cosines of pairs of which a share is mismatched, their truth, and known mismatches."""
    rng = np.random.default_rng(seed)
    noisy = rng.random(pairs) < rate
    cosines = np.where(noisy, rng.normal(0.1, 0.1, pairs), rng.normal(0.6, 0.1, pairs))
    null = rng.normal(0.1, 0.1, 50 * pairs)
    return (torch.from_numpy(a).float() for a in (cosines, null)), noisy


@pytest.mark.parametrize("rate", [0.02, 0.2, 0.5, 0.9])
def test_noise_rate_and_its_interval_cover_the_truth(rate):
    (cosines, null), noisy = mixture(20_000, rate)
    model = NullModel.fit(Histogram.of(cosines), Histogram.of(null))
    assert model.noise_rate.low - 0.01 <= noisy.mean() <= model.noise_rate.high + 0.01
    assert model.noise_rate.low <= model.noise_rate.value <= model.noise_rate.high


@pytest.mark.slow
def test_interval_covers_about_as_often_as_it_says():
    covered = 0
    for seed in range(60):
        (cosines, null), noisy = mixture(2000, 0.3, seed)
        model = NullModel.fit(Histogram.of(cosines), Histogram.of(null))
        covered += model.noise_rate.low <= noisy.mean() <= model.noise_rate.high
    assert covered >= 50  # 57 expected of 60; below 50 has probability 1e-4


def test_probability_is_calibrated():
    (cosines, null), noisy = mixture(50_000, 0.3)
    probability = NullModel.fit(Histogram.of(cosines), Histogram.of(null)).noise_probability(
        cosines
    )
    assert probability.sum().item() == pytest.approx(noisy.sum(), rel=0.03)
    for low, high in ((0.0, 0.1), (0.2, 0.8), (0.9, 1.01)):
        chosen = ((probability >= low) & (probability < high)).numpy()
        assert probability.numpy()[chosen].mean() == pytest.approx(noisy[chosen].mean(), abs=0.06)


@pytest.mark.parametrize("seed", range(3))
def test_few_mismatches_far_apart_are_as_many_as_the_rate_says(seed):
    """The bandwidth is that of the narrow peak of matched pairs: it leaves gaps between them."""
    rng = np.random.default_rng(seed)
    cosines = np.concatenate([rng.normal(-0.05, 0.14, 60), rng.normal(0.5, 0.003, 240)])
    null = rng.normal(-0.05, 0.14, 90_000)
    model = NullModel.fit(*(Histogram.of(torch.from_numpy(a).float()) for a in (cosines, null)))
    probability = model.noise_probability(torch.from_numpy(cosines).float())
    assert probability.sum().item() == pytest.approx(300 * model.noise_rate.value, rel=0.12)
    assert probability[:60].min() > 0.5


def test_probability_never_rises_with_the_cosine_and_stays_in_range():
    (cosines, null), _ = mixture(300, 0.4)
    model = NullModel.fit(Histogram.of(cosines), Histogram.of(null))
    probability = model.noise_probability(torch.linspace(-1, 1, 5001))
    assert (probability.diff() <= 1e-7).all()
    assert probability.min() >= 0
    assert probability.max() <= 1
    assert probability[0] == pytest.approx(probability.max().item())


def test_p_value_is_the_upper_tail_of_the_null():
    (cosines, null), _ = mixture(5000, 0.2)
    model = NullModel.fit(Histogram.of(cosines), Histogram.of(null))
    for at in (-0.1, 0.1, 0.25):
        expected = (null > at).float().mean().item()
        assert model.p_value(torch.tensor([at])).item() == pytest.approx(expected, abs=2e-3)
    assert model.p_value(torch.tensor([-1.0, 1.0])).tolist() == [1.0, 0.0]


def test_clean_corpus_has_no_noise_and_random_pairs_are_all_noise():
    rng = np.random.default_rng(0)
    null = torch.from_numpy(rng.normal(0.0, 0.05, 100_000)).float()
    matched = torch.from_numpy(rng.normal(0.7, 0.05, 2000)).float()
    assert NullModel.fit(Histogram.of(matched), Histogram.of(null)).noise_rate.value == 0
    everything = NullModel.fit(Histogram.of(null[:2000]), Histogram.of(null))
    assert everything.noise_rate.value > 0.95
    assert everything.noise_rate.high <= 1


def test_raw_counts_are_taken_and_wrong_ones_refused():
    counts = np.zeros(BINS)
    counts[2000:2100] = 5
    assert NullModel.fit(counts, torch.from_numpy(counts)).noise_rate.value == pytest.approx(
        1, abs=0.05
    )
    with pytest.raises(ValueError, match="4096 bins"):
        NullModel.fit(np.ones(10), counts)
    with pytest.raises(ValueError, match="at least one"):
        NullModel.fit(np.zeros(BINS), counts)


def test_histograms_count_everything_and_add_up():
    values = torch.tensor([[-1.0, 1.0], [1.0000002, -0.25]])
    histogram = Histogram.of(values)
    assert histogram.size == 4
    assert histogram.counts[0] == 1
    assert histogram.counts[-1] == 2
    assert histogram.counts[BINS * 3 // 8] == 1
    assert histogram.mean == pytest.approx(0.1875)
    histogram += Histogram.of(values)
    assert histogram.size == 8
    assert np.isnan(Histogram().mean)


def simulated(pairs, rate, seed, shared=0.5):
    """Cosines of a corpus whose images and captions are more or less alike to everything."""
    rng = np.random.default_rng(seed)
    image, caption = (shared * rng.standard_normal(pairs) for _ in range(2))
    cosines = 0.03 * (image[:, None] + caption + rng.standard_normal((pairs, pairs)))
    cosines[np.diag_indices(pairs)] += 0.25
    chosen = rng.permutation(pairs)[: int(rate * pairs)]
    order = np.arange(pairs)
    order[chosen] = np.roll(chosen, 1)
    return torch.from_numpy(cosines[:, order]).float()


def means_of(known):
    return known.image_means, known.caption_means


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_the_interval_covers_the_noise_of_the_corpus_at_hand(rate):
    """Not that of others of its kind, which would take one half as wide again."""
    covered, widths = 0, []
    for seed in range(30):
        block = BlockStatistics.of(simulated(400, rate, seed), 20.0)
        known = block.mismatches
        model = NullModel.fit(Histogram.of(block.own), known.mismatched, means_of(known))
        covered += model.noise_rate.low <= rate <= model.noise_rate.high
        widths.append(model.noise_rate.high - model.noise_rate.low)
    assert covered >= 27
    of_storeys_estimate = 2 * 1.96 * np.sqrt(rate / 400)
    assert np.mean(widths) < 1.3 * of_storeys_estimate


def test_few_images_and_captions_widen_the_interval():
    cosines = simulated(400, 0.9, 0, shared=2.0)
    block = BlockStatistics.of(cosines, 20.0)
    own, known = Histogram.of(block.own), block.mismatches
    alone = NullModel.fit(own, known.mismatched)
    both = NullModel.fit(own, known.mismatched, means_of(known))
    assert alone.noise_rate.value == pytest.approx(both.noise_rate.value, abs=0.02)
    above, further = (m.noise_rate.high - m.noise_rate.value for m in (alone, both))
    assert further > 1.1 * above


def test_nothing_below_the_median_is_not_proof_of_no_noise():
    block = BlockStatistics.of(simulated(400, 0.0, 0), 20.0)
    model = NullModel.fit(Histogram.of(block.own), block.mismatches.mismatched)
    assert (model.noise_rate.value, model.noise_rate.low) == (0.0, 0.0)
    assert 0 < model.noise_rate.high < 0.02


def test_bandwidth_is_silverman_s_of_the_narrower_spread():
    """0.9 min(deviation, quartile range / 1.349) n^(-1/5), in cosine."""
    uniform = np.zeros(4096)
    uniform[(_CENTRES > 0.1) & (_CENTRES < 0.5)] = 10.0
    n = uniform.sum()
    # A uniform over .4 deviates by .1155; its quartiles lie .2 apart, .1483 of a normal's.
    assert _bandwidth(uniform) == pytest.approx(0.9 * 0.4 / math.sqrt(12) * n**-0.2, rel=0.01)
    tails = np.zeros(4096)
    tails[(_CENTRES > -0.01) & (_CENTRES < 0.01)] = 100.0
    tails[[0, -1]] = 200.0
    quartiles = 0.01 * tails.sum() / (tails.sum() - 400)
    assert _bandwidth(tails) == pytest.approx(
        0.9 * quartiles / 1.349 * tails.sum() ** -0.2, rel=0.03
    )


def test_variance_of_a_histogram():
    counts = np.zeros(4096)
    counts[[1000, 3000]] = 1.0, 3.0
    values = np.repeat(_CENTRES[[1000, 3000]], [1, 3])
    assert _variance(counts) == pytest.approx(values.var())


def test_p_values_by_hand():
    """Four mismatches in bins 1000 to 1003: within a bin the tail falls evenly."""
    null, pairs = np.zeros(BINS), np.zeros(BINS)
    null[1000:1004], pairs[3000] = 1, 10
    model = NullModel.fit(pairs, null)
    bins = torch.tensor([999.0, 1000.0, 1001.5, 1002.0, 1004.0, 1005.0], dtype=torch.float64)
    found = model.p_value(bins * 2 / BINS - 1)
    assert found.tolist() == pytest.approx([1.0, 1.0, 0.625, 0.5, 0.0, 0.0], abs=1e-6)


def test_means_of_few_independent_mismatches_do_not_widen_the_interval():
    """Of one mismatch an image the means scatter as the mismatches do: nothing is shared."""
    rng = np.random.default_rng(0)
    known = torch.from_numpy(rng.normal(0.0, 0.1, 2000)).float()
    cosines = torch.from_numpy(rng.normal(0.0, 0.1, 2000)).float()
    cosines[1600:] += 0.3
    own, means = Histogram.of(cosines), Histogram.of(known)
    alone = NullModel.fit(own, means)
    both = NullModel.fit(own, means, (means, means))
    assert both.noise_rate.low == pytest.approx(alone.noise_rate.low, abs=1e-3)
    assert both.noise_rate.high == pytest.approx(alone.noise_rate.high, abs=1e-3)


def test_overlap_by_hand():
    """Two bins, f0 = (.8, .2), f1 = (.1, .9), half of the pairs mismatched: f = (.45, .55)."""
    f0, f1 = np.array([0.8, 0.2]), np.array([0.1, 0.9])
    observed = (f0 + f1) / 2
    expected = min(0.4 * 0.8, 0.6 * 0.1) + min(0.4 * 0.2, 0.6 * 0.9)
    assert _overlap(f0 / observed, 0.5, observed) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [
        ((0.1, 0.2), (0.15, 0.4), True),
        ((0.1, 0.2), (0.3, 0.4), False),
        ((0.0, 1.0), (0.2, 0.3), True),
    ],
)
def test_two_rates_agree_where_their_intervals_overlap(first, second, agree):
    (cosines, null), _ = mixture(500, 0.3)
    model = NullModel.fit(Histogram.of(cosines), Histogram.of(null))
    one, other = (
        dataclasses.replace(model, noise_rate=Estimate(model.noise_rate.value, low, high))
        for low, high in (first, second)
    )
    assert one.agrees_with(other) == other.agrees_with(one) == agree
