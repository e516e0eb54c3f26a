"""Soft cap sampling against a plain simulation of drawing one pair after the other."""

import numpy as np
import pytest

from ncclean.selection.soft_cap import draw_keys, soft_cap_draws


def one_after_the_other(scores, size, penalty, runs):
    """(runs, n) how often each pair is drawn, in simulations side by side."""
    rng = np.random.default_rng(0)
    left = np.tile(np.array(scores, dtype=float), (runs, 1))
    counts, run = np.zeros(left.shape, dtype=int), np.arange(runs)
    for _ in range(size):
        weights = np.exp(left - left.max(axis=1, keepdims=True)).cumsum(axis=1)
        drawn = (weights < rng.random((runs, 1)) * weights[:, -1:]).sum(axis=1)
        counts[run, drawn] += 1
        left[run, drawn] -= penalty
    return counts


def keys_of(count, seed):
    return draw_keys([f"pair {number}" for number in range(count)], seed)


@pytest.mark.parametrize(
    "penalty",
    [0.15, pytest.param(0.0, marks=pytest.mark.slow), pytest.param(1.0, marks=pytest.mark.slow)],
)
def test_the_same_distribution_as_drawing_one_after_the_other(penalty):
    scores = np.array([0.0, 0.5, 1.0, 2.0, 3.0, -1.0])
    size, runs = 16, 1500
    plain = one_after_the_other(scores, size, penalty, runs)
    ours = np.array(
        [soft_cap_draws(scores, keys_of(6, seed), size, penalty) for seed in range(runs)]
    )
    assert (ours.sum(axis=1) == size).all()
    error = np.sqrt((plain.var(axis=0) + ours.var(axis=0)) / runs)
    assert (np.abs(plain.mean(axis=0) - ours.mean(axis=0)) < 4 * error + 1e-9).all()
    for pair in range(6):  # not the means alone
        worst = max(
            abs((plain[:, pair] <= n).mean() - (ours[:, pair] <= n).mean()) for n in range(size)
        )
        assert worst < 0.06


def test_sizes_and_the_penalty():
    scores = np.random.default_rng(0).normal(size=5_000)
    for size in (1, 4_999, 5_000, 60_000):
        assert soft_cap_draws(scores, keys_of(5_000, 0), size).sum() == size
    free = soft_cap_draws(scores, keys_of(5_000, 0), 20_000, 0.0)
    capped = soft_cap_draws(scores, keys_of(5_000, 0), 20_000, 0.5)
    assert capped.max() < free.max() / 4
    assert (capped > 0).sum() > (free > 0).sum()


def test_a_draw_depends_on_the_pair_and_the_seed():
    scores = np.linspace(-1, 1, 1_000)
    keys = keys_of(1_000, 0)
    order = np.random.default_rng(1).permutation(1_000)
    draws = soft_cap_draws(scores, keys, 700)
    assert (soft_cap_draws(scores[order], keys[order], 700) == draws[order]).all()
    assert (soft_cap_draws(scores, keys_of(1_000, 1), 700) != draws).any()
    # What is added to all scores, or is much worse, changes nothing.
    assert (soft_cap_draws(scores + 1e4, keys, 700) == draws).all()
    wider = soft_cap_draws(np.append(scores, [-1e4, -1e300]), np.append(keys, keys_of(2, 5)), 700)
    assert (wider == np.append(draws, [0, 0])).all()


@pytest.mark.parametrize(
    ("scores", "penalty"), [([], 0.1), ([np.nan], 0.1), ([np.inf], 0.1), ([1.0], -1)]
)
def test_what_cannot_be_drawn_from(scores, penalty):
    with pytest.raises(ValueError, match="needs pairs with finite scores"):
        soft_cap_draws(np.array(scores), keys_of(len(scores), 0), 3, penalty)


@pytest.mark.parametrize(
    ("count", "size", "penalty"), [(10, 12, 1000.0), (10, 20_000, 0.5), (2, 2000, 1.0)]
)
def test_draws_that_are_exceedingly_unlikely(count, size, penalty):
    draws = soft_cap_draws(np.zeros(count), keys_of(count, 0), size, penalty)
    assert draws.sum() == size
    assert draws.max() - draws.min() <= max(2, 20 / penalty)


def test_pairs_with_one_name_are_drawn_no_more_often_than_asked_for():
    assert soft_cap_draws(np.zeros(4), keys_of(1, 0).repeat(4), 6).sum() == 6
