"""Bounds, thresholds and the spread of groups, by hand and by simulation."""

import numpy as np
import pytest
from scipy import stats

from ncclean.explaining.discoveries import heterogeneity, log_p_values, log_threshold, q_values


def one(pairs, mean, expected, variance, tau2=0.0):
    numbers = (np.array([value], float) for value in (pairs, mean, expected, variance))
    return float(log_p_values(*numbers, tau2)[0])


def test_chernoff_by_hand():
    # KL(1/2 || 1/4) = log(2) / 2 + log(2/3) / 2
    exponent = 100 * (np.log(2) / 2 + np.log(2 / 3) / 2)
    assert one(100, 0.5, 0.25, 0.25 * 0.75) == pytest.approx(-exponent, rel=1e-4)


def test_a_small_variance_says_more():
    # Bennett: n s^2 h(t / s^2), t = .1, s^2 = .01: h(10) = 11 log(11) - 10
    exponent = 100 * 0.01 * (11 * np.log(11) - 10)
    assert one(100, 0.3, 0.2, 0.01) == pytest.approx(-exponent, rel=1e-4)


def test_what_is_not_above_is_no_evidence():
    assert one(1000, 0.2, 0.2, 0.1) == 0
    assert one(1000, 0.1, 0.2, 0.1) == 0


def test_groups_that_differ_anyhow_need_more():
    alone, among = one(10_000, 0.3, 0.2, 0.16), one(10_000, 0.3, 0.2, 0.16, 0.05**2)
    assert among > alone / 100
    assert one(10_000, 0.3, 0.2, 0.16, 0.05**2) == pytest.approx(
        one(1_000_000, 0.3, 0.2, 0.16, 0.05**2), rel=0.05
    )


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.4])
def test_the_bound_is_one_for_binomial_counts(rate):
    counts = np.arange(1, 61)
    bound = np.exp(
        log_p_values(
            np.full(60, 60.0), counts / 60, np.full(60, rate), np.full(60, rate * (1 - rate)), 0.0
        )
    )
    exact = stats.binom.sf(counts - 1, 60, rate)
    assert (bound >= exact - 1e-9).all()


def test_the_spread_of_groups_is_estimated_and_a_few_causes_do_not_move_it():
    rng = np.random.default_rng(0)
    excess = rng.normal(0, np.sqrt(0.03**2 + 0.0004), 2000)
    variance = np.full(2000, 0.0004)
    assert heterogeneity(excess, variance) == pytest.approx(0.03**2, rel=0.2)
    excess[:100] = 0.8
    assert heterogeneity(excess, variance) == pytest.approx(0.03**2, rel=0.35)
    assert heterogeneity(rng.normal(0, 0.02, 2000), variance) < 0.008**2
    assert heterogeneity(excess[:5], variance[:5]) == 0


def test_a_cause_that_lowers_all_other_groups_is_no_spread():
    excess, variance = np.full(12, -0.17), np.full(12, 0.0002)
    excess[:2] = 0.86
    assert heterogeneity(excess, variance) < 0.02**2


@pytest.mark.parametrize("tests", [4, 40, 5000])
def test_thresholds_and_q_values_are_scipys(tests):
    """Where p-values are numbers, and those of tests that are not here too are 1."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        p = rng.random(min(tests, 40)) ** rng.integers(1, 8)
        every = np.concatenate([p, np.ones(tests - len(p))])
        expected = stats.false_discovery_control(every, method="by")[: len(p)]
        q = q_values(np.log(p), tests)
        # The sum 1/i is by Euler and Maclaurin.
        assert q == pytest.approx(expected, rel=0.003)
        is_clear = abs(expected - 0.05) > 0.001
        are_found = np.log(p) <= log_threshold(np.log(p), tests, 0.05)
        assert (are_found == (expected <= 0.05))[is_clear].all()


def test_p_values_below_all_numbers_keep_their_order():
    q = q_values(np.array([-5000.0, -800.0, -1.0]), 10)
    assert q[:2].tolist() == [0, 0]
    assert log_threshold(np.array([-5000.0, -800.0]), 10, 1e-300) > -np.inf


def test_few_false_discoveries_among_true_ones():
    """Of groups half of which have a cause, whose means are of values like probabilities."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(40):
        has_cause = rng.random(200) < 0.1
        wrong = rng.random((200, 100)) < np.where(has_cause, 0.4, 0.1)[:, None]
        log_p = log_p_values(
            np.full(200, 100.0), wrong.mean(axis=1), np.full(200, 0.1), np.full(200, 0.09), 0.0
        )
        found = log_p <= log_threshold(log_p, 200, 0.05)
        shares.append((found & ~has_cause).sum() / max(found.sum(), 1))
        assert (found & has_cause).sum() > 0.7 * has_cause.sum()
    assert np.mean(shares) < 0.05
