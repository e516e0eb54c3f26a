import math

import pytest
import torch

from disentangle.mine import mutual_information


def gaussians(correlation: float, pairs: int = 3000):
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(pairs, 2, generator=generator) for _ in range(2))
    return x, correlation * x + math.sqrt(1 - correlation**2) * noise


def test_correlated_gaussians_against_the_closed_form():
    """Two dimensions of correlation .9: -ln(1 - .81) = 1.66 nats; the estimate is a lower bound."""
    x, y = gaussians(0.9)
    assert mutual_information(x, y) == pytest.approx(-math.log(1 - 0.81), rel=0.2)


def test_the_same_again_is_the_same():
    x, y = gaussians(0.9, 800)
    assert mutual_information(x, y, steps=50) == mutual_information(x, y, steps=50) > 0


def test_independence_and_a_collapsed_half():
    x, y = gaussians(0.0, 800)
    assert mutual_information(x, y, steps=100) < 0.05
    assert mutual_information(x, torch.ones(800, 3), steps=20) < 0.05
