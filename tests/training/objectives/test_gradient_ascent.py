import math

import pytest
import torch

from ncclean.training.objectives.baselines import gradient_ascent_terms
from ncclean.training.objectives.clip import clip_loss
from tests.training.objectives.samples import embeddings

FORGET = torch.tensor([True, False, False, True, True, False])


def test_minus_one_set_plus_the_other():
    image, text = embeddings(2)
    forgotten, retained = gradient_ascent_terms(image, text, 5.0, FORGET, label_smoothing=0.0)
    assert torch.allclose(forgotten, -clip_loss(image[FORGET], text[FORGET], 5.0))
    assert torch.allclose(retained, clip_loss(image[~FORGET], text[~FORGET], 5.0))


def test_smoothing_by_hand():
    """Logits [[1, 0], [0, 1]]: with smoothing .2 the target is (.9, .1)."""
    eye, nothing = torch.eye(2), torch.zeros(2, dtype=torch.bool)
    _, loss = gradient_ascent_terms(eye, eye, 1.0, nothing, label_smoothing=0.2)
    own = math.log(1 + math.exp(-1))
    assert loss.item() == pytest.approx(0.9 * own + 0.1 * (own + 1), abs=1e-6)


@pytest.mark.parametrize("forget", [FORGET | True, FORGET & False])
def test_an_empty_set_stays_attached(forget):
    image, text = embeddings(2)
    terms = gradient_ascent_terms(image, text, 5.0, forget)
    assert terms[1 if forget.all() else 0].item() == 0
    for term in terms:
        term.backward(retain_graph=True)
    assert torch.isfinite(image.grad).all()


def test_only_the_loss_to_retain_is_smoothed():
    image, text = embeddings(2)
    forgotten, retained = gradient_ascent_terms(image, text, 5.0, FORGET, label_smoothing=0.3)
    assert torch.allclose(forgotten, -clip_loss(image[FORGET], text[FORGET], 5.0))
    assert not torch.allclose(retained, clip_loss(image[~FORGET], text[~FORGET], 5.0))
