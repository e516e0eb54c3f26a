import math

import pytest
import torch

from ncclean.training.objectives.baselines import rince_loss
from ncclean.training.objectives.clip import clip_loss
from tests.training.objectives.samples import embeddings, extremes


def test_by_hand():
    """All logits 0, two pairs: -1 / .1 + (.01 * 2)^.1 / .1."""
    blank = torch.zeros(2, 3)
    assert rince_loss(blank, blank, 1.0).item() == pytest.approx(-10 + 10 * 0.02**0.1, abs=1e-5)
    image, text = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    first = -math.exp(0.2) + (0.01 * (math.exp(2) + 1)) ** 0.1
    second = -1 + (0.01 * 2) ** 0.1
    expected = 10 * (first + second) / 2  # rows and columns are the same
    assert rince_loss(image, text, 2.0).item() == pytest.approx(expected, abs=1e-5)


def test_small_q_is_infonce():
    image, text = embeddings(2, dtype=torch.float64)
    expected = clip_loss(image, text, 5.0) + math.log(0.01)
    assert rince_loss(image, text, 5.0, q=1e-7).item() == pytest.approx(expected.item(), abs=1e-5)


def test_a_pair_that_cannot_be_fitted_pulls_less_than_in_clip():
    """Relative to a fitted pair, a mismatched one has the smaller gradient; the point of q."""
    image = torch.eye(4)[:3].requires_grad_()
    text = torch.eye(4)[[0, 1, 3]]

    def share(loss):
        gradient = torch.autograd.grad(loss(image, text), image)[0].norm(dim=1)
        return float(gradient[2] / gradient[0])

    robust = share(lambda i, t: rince_loss(i, t, 10.0, q=0.5))
    assert robust < share(lambda i, t: clip_loss(i, t, 10.0))


def test_smooth_and_finite():
    image, text = embeddings(2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda i, t: rince_loss(i, t, 5.0), (image, text))
    image, text = extremes(2)
    loss = rince_loss(image, text, 100.0)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(image.grad).all()
