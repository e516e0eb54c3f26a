import numpy as np
import pytest

from ncclean.scoring.neighbours.matrix import EmbeddingMatrix
from ncclean.scoring.neighbours.whitening import Whitened
from tests.scoring.neighbours.simulated import unit


def test_every_direction_counts_alike():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4000, 6)) * [5, 2, 1, 1, 0.3, 0.1] + [3, 0, 0, 0, 0, 0]
    rows = np.arange(4000)
    white = Whitened(EmbeddingMatrix([unit(values).astype(np.float32)]), rows, 0).take(rows)
    assert np.linalg.norm(white, axis=1) == pytest.approx(np.ones(4000), abs=1e-5)
    covariance = np.cov(white.T) * 6
    variance = covariance.diagonal()
    np.testing.assert_allclose(covariance - np.diag(variance), 0, atol=0.05)
    assert variance.max() / variance.min() < 3  # was 2,500


def test_a_direction_without_variance_stays_finite():
    values = np.zeros((50, 3), np.float32)
    values[:, 0] = 1
    white = Whitened(EmbeddingMatrix([values]), np.arange(50), 0).take(np.arange(50))
    assert np.isfinite(white).all()
