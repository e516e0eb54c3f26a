import math

import pytest
import torch

from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.osa import osa_loss
from tests.training.objectives.samples import embeddings

# Logits [[2, 0], [0, 0]] at scale 2: ln(1 + e^-2) for the first pair, ln 2 for the second.
IMAGE, TEXT = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.eye(2)
FIRST, SECOND = math.log(1 + math.exp(-2)), math.log(2)


def test_by_hand():
    """The mean over all pairs, not divided by the weights; the second pair is still a negative."""
    loss = osa_loss(IMAGE, TEXT, 2.0, torch.tensor([0.1, 0.0]))
    assert loss.item() == pytest.approx(0.1 * FIRST / 2, abs=1e-7)
    loss = osa_loss(IMAGE, TEXT, 2.0, torch.tensor([0.1, 0.3]), normalize=True)
    assert loss.item() == pytest.approx((0.5 * FIRST + 1.5 * SECOND) / 2, abs=1e-6)


def test_equal_weights_are_the_clip_loss():
    image, text = embeddings(2)
    weights = torch.full((6,), 0.1)
    expected = clip_loss(image, text, 5.0)
    assert torch.allclose(osa_loss(image, text, 5.0, weights), 0.1 * expected)
    assert torch.allclose(osa_loss(image, text, 5.0, weights, normalize=True), expected)


def test_no_clean_pair_at_all():
    image, text = embeddings(2)
    loss = osa_loss(image, text, 5.0, torch.zeros(6), normalize=True)
    loss.backward()
    assert loss == 0
    assert (image.grad == 0).all()
