"""A calibration that is moved: monotone, near the identity without reason, and to the measured."""

import numpy as np
import pytest

from ncclean.base.estimates import Estimate
from ncclean.scoring.recalibration import Audited, Recalibration, recalibrated

GRID = np.linspace(0, 1, 2_001)


def test_the_identity_is_one_of_the_maps():
    same = Recalibration(0.0, (-1.0, 2.0), (1.0, 1.0, 1.0))(GRID)
    assert np.abs(same - GRID).max() <= 1.01e-3  # kept off 0 and 1


def fitted(probability, truth, weights=None):
    weights = np.ones(len(probability)) if weights is None else weights
    return recalibrated(probability, truth, weights)


def test_a_right_calibration_stays():
    rng = np.random.default_rng(0)
    probability = rng.beta(0.5, 2, 20_000)
    moved = fitted(probability, rng.random(20_000) < probability)(GRID)
    assert np.abs(moved - GRID).max() < 0.04


@pytest.mark.parametrize("seed", range(5))
def test_moved_probabilities_keep_their_order_and_have_the_measured_mean(seed):
    rng = np.random.default_rng(seed)
    probability = rng.beta(0.3, 1, 300)
    truth = rng.random(300) < 0.2 + 0.5 * rng.random() * probability
    weights = rng.choice([1.0, 5.0, 30.0], 300)
    recalibration = fitted(probability, truth, weights)
    assert (np.diff(recalibration(GRID)) > 0).all()
    mean = np.average(recalibration(probability), weights=weights)
    assert mean == pytest.approx(np.average(truth, weights=weights), abs=1e-3)


def test_near_misses_lift_what_looks_matched_alone():
    """A fifth of the pairs that look matched are near misses; what looks mismatched is."""
    rng = np.random.default_rng(1)
    probability = np.where(rng.random(5_000) < 0.1, 0.98, 0.002)
    truth = rng.random(5_000) < np.where(probability > 0.5, 0.98, 0.2)
    low, high = fitted(probability, truth)(np.array([0.002, 0.98]))
    assert low == pytest.approx(0.2, abs=0.02)
    assert high == pytest.approx(0.98, abs=0.01)


def test_weights_decide():
    probability = np.full(200, 0.5)
    truth = np.arange(200) < 100
    weights = np.where(truth, 1.0, 9.0)
    assert fitted(probability, truth, weights)(np.array([0.5]))[0] == pytest.approx(0.1, abs=0.01)


def test_answers_that_all_agree_do_not_reach_infinity():
    moved = fitted(np.linspace(0.1, 0.9, 50), np.zeros(50, bool))(GRID)
    assert np.isfinite(moved).all()
    assert (np.diff(moved) >= 0).all()


@pytest.mark.parametrize("answer", [False, True])
def test_answers_that_all_agree_move_the_mean_to_the_end_of_their_interval(answer):
    """30 answers of one kind leave 1 - .025^(1/30) = 11.6 % to the other."""
    probability = np.array([0.99] * 20 + [0.5] * 10)
    probability = 1 - probability if answer else probability
    moved = fitted(probability, np.full(30, answer))
    mean = moved(probability).mean()
    assert (1 - mean if answer else mean) == pytest.approx(1 - 0.025 ** (1 / 30), abs=1e-6)
    # What looked hopeless before is not thought certain now.
    assert 0.01 < moved(np.array([0.01 if answer else 0.99]))[0] < 0.99


def test_a_calibration_that_such_answers_do_not_contradict_stays():
    probability = np.full(30, 0.05)
    assert fitted(probability, np.zeros(30, bool))(probability)[0] == pytest.approx(0.05, abs=2e-3)


def test_answers_that_all_agree_count_by_what_they_are_worth():
    """One heavy answer of 30: as if there were few, so they move the mean less."""
    probability = np.full(30, 0.9)
    weights = np.where(np.arange(30) == 0, 100.0, 1.0)
    means = [
        fitted(probability, np.zeros(30, bool), w)(probability).mean() for w in (None, weights)
    ]
    assert means[0] < 0.2 < means[1]


def test_the_inverse_undoes():
    recalibration = Recalibration(1.5, (-3.0, 0.5), (0.7, 0.1, 1.2))
    points = np.array([1e-4, 0.01, 0.3, 0.5, 0.9, 0.999])
    np.testing.assert_allclose(recalibration.inverse(recalibration(points)), points, rtol=1e-3)


def test_the_metadata_hold_it_all():
    audited = Audited(
        Recalibration(1.0, (0.5,), (2.0, 1.0)),
        Estimate(0.1, 0.05, 0.2),
        300,
        "abc",
        (0.1, 0.5),
        (0.2, 0.6),
    )
    assert Audited.of_json(audited.to_json()) == audited
    for text in (None, "", "nan", "{}", "[]", '{"recalibration": {}}'):
        assert Audited.of_json(text) is None
