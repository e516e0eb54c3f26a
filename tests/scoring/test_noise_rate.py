import functools

import numpy as np
import pytest

from ncclean.base.estimates import UNKNOWN, Estimate
from ncclean.scoring.noise_rate import _CELL_EDGES, _Fit, cell_counts, noise_rate, without_vague
from ncclean.scoring.vague_rate import tells_nothing, why_vague

EDGES = np.linspace(-1, 1, 4097)


def of_pairs(matched, rate, pairs=4000, seed=0):
    """The estimate for cosines of pairs, `matched(rng, n)` of them, and the share in truth.

    Mismatched cosines are skewed: the estimate must not depend on their shape.
    """
    rng = np.random.default_rng(seed)
    mismatched = round(rate * pairs)
    x = np.concatenate([rng.standard_normal(mismatched), matched(rng, pairs - mismatched)])
    return noise_rate(cell_counts(counts_of(x), null(), EDGES), 0.002), mismatched / pairs


def counts_of(x):
    """Of cosines that a mismatched pair of the standard normal would have."""
    cosines = 0.15 + 0.05 * (np.exp(0.3 * x) - 1) / 0.3
    return np.histogram(cosines, EDGES)[0].astype(float)


@functools.cache
def null():
    """The counts of known mismatches."""
    return counts_of(np.random.default_rng(1_000).standard_normal(400_000))


def normal(mu, sigma):
    return lambda rng, n: rng.normal(mu, sigma, n)


def half_learnt(rng, n):
    """Most pairs well above the mismatches, some hardly: no single shape."""
    return np.where(rng.random(n) < 0.3, rng.normal(1.0, 0.7, n), rng.normal(3.0, 0.6, n))


ESTIMATORS = {
    "AUROC .74": (normal(0.85, 0.85), 0.74),
    ".85": (normal(1.3, 0.75), 0.85),
    ".957": (normal(2.0, 0.6), 0.957),
    ".999": (normal(3.5, 0.5), 0.9991),
    "half learnt": (half_learnt, 0.93),
}
QUICK = {
    ("AUROC .74", 0.05), ("AUROC .74", 0.4), (".85", 0.2), (".957", 0.05), (".957", 0.4),
    (".999", 0.2), ("half learnt", 0.2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("matched", "auroc", "rate"),
    [
        pytest.param(
            *estimator, rate, id=f"{name}-{rate}",
            marks=() if (name, rate) in QUICK else pytest.mark.slow,
        )
        for name, estimator in ESTIMATORS.items()
        for rate in (0.05, 0.2, 0.4)
    ],
)  # fmt: skip
def test_from_weak_to_strong_estimators(matched, auroc, rate):
    found = [of_pairs(matched, rate, seed=seed) for seed in range(10)]
    covered = sum(each.rate.low <= truth <= each.rate.high for each, truth in found)
    assert covered >= 8
    rates = [each.rate.value for each, _ in found]
    assert np.mean(rates) == pytest.approx(rate, abs=0.03 if auroc < 0.8 else 0.012)
    separations = [each.separation for each, _ in found]
    assert np.mean(separations) == pytest.approx(auroc, abs=0.02)


def test_an_estimator_that_cannot_tell_says_so():
    found, truth = of_pairs(normal(0.5, 0.9), 0.4, pairs=1000)
    assert found.rate.high - found.rate.low > 0.3
    assert found.rate.low <= truth <= found.rate.high
    sentence = why_vague(found.rate)
    assert "cannot tell how noisy" in sentence
    assert "stronger model" in sentence
    assert why_vague(Estimate(0.15, 0.1, 0.2)) is None
    assert why_vague(UNKNOWN) is None


@pytest.mark.parametrize("pairs", [50, 500, 2000, 8000])
def test_where_no_pair_is_recognised_the_rate_may_be_anything(pairs):
    """Matched pairs look like all others, or there are none: nothing tells these cases apart."""
    for seed in range(3):
        found, _ = of_pairs(normal(0.0, 1.0), 0.3, pairs=pairs, seed=seed)
        assert tells_nothing(found.rate), (found, seed)
    assert "may be anything" in why_vague(found.rate)


def test_a_corpus_that_is_nearly_all_noise_is_told_where_some_pairs_stand_out():
    found, truth = of_pairs(normal(4.0, 0.5), 0.9)
    assert 0.85 < found.rate.low <= truth <= found.rate.high < 0.95


def test_more_pairs_and_stronger_estimators_say_more():
    few, many = (of_pairs(normal(1.3, 0.75), 0.2, pairs=n)[0].rate for n in (1000, 100_000))
    strong = of_pairs(normal(3.5, 0.5), 0.2, pairs=1000)[0].rate
    assert many.high - many.value < (few.high - few.value) / 3
    assert strong.high - strong.low < (few.high - few.low) / 1.8


def vague(share, mu, sigma):
    """A share of the matched pairs scores like mismatches: captions that fit any image."""
    return lambda rng, n: np.where(
        rng.random(n) < share, rng.standard_normal(n), rng.normal(mu, sigma, n)
    )


@pytest.mark.parametrize(("share", "mu"), [(0.07, 0.9), (0.15, 1.3), (0.05, 1.6)])
@pytest.mark.parametrize("pairs", [2000, 20_000])
def test_a_clean_corpus_with_vague_captions_is_not_called_noisy(share, mu, pairs):
    """Among weak estimators: the AUROC is .71, .80 and .88."""
    for seed in range(4):
        found, _ = of_pairs(vague(share, mu, 0.7), 0.0, pairs, seed)
        assert found.rate.low == 0


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.4])
def test_vague_captions_are_no_noise_and_real_noise_is_covered(rate):
    for seed in range(3):
        found, truth = of_pairs(vague(0.05, 1.6, 0.7), rate, 4000, seed)
        assert found.rate.low <= truth <= found.rate.high


def test_the_rate_without_vague_pairs_by_hand():
    """At the rate p that is left, (q - p) / (1 - p) is the part of (2 (1 - A))^2."""
    for alike, as_given, part in [(0.2, 0.86, 1.0), (0.2, 0.85, 0.0625), (0.4, 0.78, 0.5)]:
        p = without_vague(alike, as_given, part)
        auroc = (as_given - p / 2) / (1 - p)
        assert (alike - p) / (1 - p) == pytest.approx(part * (2 * (1 - auroc)) ** 2)
        assert 0 < p < alike
    assert without_vague(0.2, 0.86, 1.0) == pytest.approx((0.2 - 0.28**2) / (1.2 - 0.56))
    assert without_vague(0.2, 0.7, 1.0) == 0  # an AUROC of .7 allows .36
    assert without_vague(0.3, 0.85, 1.0) == pytest.approx(0.3)  # all others are above


def test_wrong_captions_unlike_the_known_ones_lower_the_end():
    """Captions of other topics score lower than those of the corpus: each counts for more."""

    def estimated(off):
        rng = np.random.default_rng(0)
        x = np.concatenate([rng.normal(off, 1, 600), rng.normal(4, 0.5, 1400)])
        return noise_rate(cell_counts(counts_of(x), null(), EDGES), 0.002, may_be_lower=True).rate

    alike, lower = estimated(0.0), estimated(-0.8)
    assert alike.low > 0.26
    assert lower.low < 0.2 < 0.3 < lower.high


def test_a_strong_estimator_tells_the_share_at_hand():
    """No wider than a few pairs: it does not vary as shares of samples do."""
    estimates = [of_pairs(normal(4.5, 0.3), 0.2, 1000, seed)[0].rate for seed in range(5)]
    sampled = 2 * 1.96 * np.sqrt(0.2 * 0.8 / 1000)
    assert np.mean([rate.high - rate.low for rate in estimates]) < 1.05 * sampled
    assert all(rate.low <= 0.2 <= rate.high for rate in estimates)


@pytest.mark.parametrize("pairs", [1, 2, 10, 50_000_000])
def test_any_number_of_pairs(pairs):
    null = np.round(1e9 * np.diff(np.arctan(EDGES * 20)))
    counts = cell_counts(null / null.sum() * pairs, null, EDGES)
    found = noise_rate(counts, 0.01).rate
    assert 0 <= found.low <= found.value <= found.high <= 1
    if pairs > 10:
        assert found.value > 0.9  # all are like the known mismatches


@pytest.mark.parametrize("mu", [0.6, 1.5, 6.0], ids=["below its least", "usual", "large"])
def test_gradient_of_the_penalised_likelihood(mu):
    """Against differences: the damped steps would also arrive by a wrong one, only later."""
    cells = np.histogram(np.random.default_rng(0).normal(1, 1, 3000), 60)[0].astype(float)
    fit = _Fit(np.resize(cells, len(_CELL_EDGES) + 1), 0.002, _CELL_EDGES[-1])
    shape = np.array([[mu, -0.3, 0.1, 0.001, 0.0007]])
    share = np.array([0.2])
    gradient = fit._scored(share, shape)[1][0]
    for place in range(5):
        step = np.zeros((1, 5))
        step[0, place] = 1e-6
        above, below = (fit._scored(share, shape + sign * step)[0][0] for sign in (1, -1))
        assert gradient[place] == pytest.approx((above - below) / 2e-6, rel=1e-3, abs=1e-2)
