import numpy as np
import pytest

from ncclean.neighbour_search.whitening import Whitening
from tests.neighbour_search.simulated import unit


def test_every_direction_counts_alike():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4000, 6)) * [5, 2, 1, 1, 0.3, 0.1] + [3, 0, 0, 0, 0, 0]
    vectors = unit(values).astype(np.float32)
    white = Whitening.fit(vectors).apply(vectors)
    assert np.linalg.norm(white, axis=1) == pytest.approx(np.ones(4000), abs=1e-5)
    covariance = np.cov(white.T) * 6
    variance = covariance.diagonal()
    np.testing.assert_allclose(covariance - np.diag(variance), 0, atol=0.05)
    assert variance.max() / variance.min() < 3  # was 2,500


def test_a_direction_without_variance_stays_finite():
    values = np.zeros((50, 3), np.float32)
    values[:, 0] = 1
    space = Whitening.fit(values)
    assert np.isfinite(space.apply(values)).all()


def test_a_transform_is_the_same_from_a_file():
    vectors = unit(np.random.default_rng(1).standard_normal((200, 8)) + 2).astype(np.float32)
    for space in (Whitening.fit(vectors), Whitening.none(8)):
        again = Whitening.of(space.arrays("x_"), "x_")
        np.testing.assert_array_equal(again.apply(vectors), space.apply(vectors))
