import numpy as np
import pytest

from ncclean.neighbour_search.whitening import Whitening, whitened
from tests.neighbour_search.simulated import unit


def test_every_direction_counts_alike():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4000, 6)) * [5, 2, 1, 1, 0.3, 0.1] + [3, 0, 0, 0, 0, 0]
    vectors = unit(values).astype(np.float32)
    white = Whitening.fit(vectors).apply(vectors)
    assert np.linalg.norm(white, axis=1) == pytest.approx(np.ones(4000), abs=1e-5)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=0.3)  # nothing that all share
    covariance = np.cov(white.T) * 6
    variance = covariance.diagonal()
    np.testing.assert_allclose(covariance - np.diag(variance), 0, atol=0.05)
    assert variance.max() / variance.min() < 3  # was 2,500


def test_a_direction_without_variance_stays_finite():
    values = np.zeros((50, 3), np.float32)
    values[:, 0] = 1
    space = Whitening.fit(values)
    assert np.isfinite(space.apply(values)).all()


def test_each_side_has_the_space_that_was_learnt_for_it():
    vectors = unit(np.random.default_rng(1).standard_normal((200, 8)) + 2).astype(np.float32)
    space = Whitening.fit(vectors)
    learnt = {"text_mean": space.mean, "text_axes": space.axes}
    np.testing.assert_array_equal(whitened(learnt, "text", vectors), space.apply(vectors))
    np.testing.assert_array_equal(whitened(learnt, "image", vectors), vectors)
