import pytest
import torch

from ncclean.training.objectives.baselines import (
    cross_modal_consistency,
    cyclip_terms,
    in_modal_consistency,
)
from ncclean.training.objectives.clip import clip_loss
from tests.training.objectives.samples import embeddings


def test_by_hand():
    """<v1, v2> = 0 and <t1, t2> = .96, <v1, t2> = <v2, t1> = .6; then .8 and .6."""
    image = torch.eye(2)
    text = torch.tensor([[0.8, 0.6], [0.6, 0.8]])
    assert in_modal_consistency(image, text).item() == pytest.approx(0.9216, abs=1e-6)
    assert cross_modal_consistency(image, text).item() == pytest.approx(0.0, abs=1e-6)
    skewed = torch.tensor([[0.8, 0.6], [0.8, 0.6]])  # <v1, t2> = .8, <v2, t1> = .6
    assert cross_modal_consistency(image, skewed).item() == pytest.approx(0.04, abs=1e-6)


def test_weights():
    image, text = embeddings(2)
    parts = in_modal_consistency(image, text) + cross_modal_consistency(image, text)
    expected = clip_loss(image, text, 5.0) + 0.25 * parts
    terms = cyclip_terms(image, text, 5.0, None)
    assert torch.allclose(sum(terms.values()), expected)
