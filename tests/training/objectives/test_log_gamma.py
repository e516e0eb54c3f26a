import math

import pytest
import torch
from scipy.special import digamma, polygamma

from ncclean.training.objectives.bayes import sample_log_gamma


@pytest.mark.parametrize("shape", [0.3, 1.0, 6.0, 10.0])
def test_logarithms_have_the_moments_of_their_closed_form(shape):
    """log Gamma(a, rate b) has mean psi(a) - log b and variance psi'(a)."""
    n = 200_000
    rate = torch.full((n,), math.log(4.0), dtype=torch.float64)
    drawn = sample_log_gamma(shape, rate, torch.Generator().manual_seed(0))
    deviation = math.sqrt(polygamma(1, shape))
    assert drawn.mean().item() == pytest.approx(
        digamma(shape) - math.log(4), abs=4 * deviation / math.sqrt(n)
    )
    assert drawn.std().item() == pytest.approx(deviation, rel=0.02)


def test_tiny_shapes_and_huge_rates_do_not_underflow():
    """Half of Gamma(1e-3) lies below e^-690, most of it where float32 is 0."""
    drawn = sample_log_gamma(1e-3, torch.full((10_000,), 500.0), torch.Generator().manual_seed(0))
    assert torch.isfinite(drawn).all()
    assert -1300 < drawn.median() < -1100
