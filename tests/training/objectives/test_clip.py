import math

import pytest
import torch

from ncclean.training.objectives.clip import clip_loss


def test_by_hand():
    """Logits [[2, 0], [0, 0]]: rows ln(1 + e^-2) and ln 2, columns the same."""
    eye = torch.eye(2)
    image = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    expected = (math.log(1 + math.exp(-2)) + math.log(2)) / 2
    assert clip_loss(image, eye, 2.0).item() == pytest.approx(expected, abs=1e-6)


def test_gradients_and_extremes():
    torch.manual_seed(0)
    image, text = (torch.randn(5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda i, t: clip_loss(i, t, 3.0), (image, text))
    opposite = torch.tensor([[1.0], [-1.0]])
    assert torch.isfinite(clip_loss(opposite, -opposite, 100.0))
    assert clip_loss(opposite.half(), opposite.half(), 100.0).dtype == torch.float32
