"""What holds for every objective over image and caption embeddings."""

from types import SimpleNamespace

import pytest
import torch

from ncclean.training.objectives.baselines import (
    cyclip_terms,
    gradient_ascent_terms,
    rince_loss,
    softclip_loss,
)
from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.osa import osa_loss
from tests.training import formulas
from tests.training.objectives.samples import embeddings, extremes

WEIGHTS = torch.tensor([0.1, 0.0, 0.05, 0.14, 0.0, 0.02])


def _batch(weights: torch.Tensor) -> SimpleNamespace:
    return SimpleNamespace(weights=weights)


# Of embeddings, the scale and the weights of pairs: the loss, and the paper's.
OBJECTIVES = {
    "clip": (lambda v, t, s, w: clip_loss(v, t, s), lambda v, t, s, w: formulas.clip(v, t, s)),
    "osa": (osa_loss, lambda v, t, s, w: formulas.osa(v, t, s, _batch(w))),
    "osa_normalized": (
        lambda v, t, s, w: osa_loss(v, t, s, w, normalize=True),
        lambda v, t, s, w: formulas.osa(v, t, s, _batch(w), normalized=True),
    ),
    "gradient_ascent": (
        lambda v, t, s, w: sum(gradient_ascent_terms(v, t, s, w < 0.04)),
        lambda v, t, s, w: formulas.gradient_ascent(v, t, s, w < 0.04),
    ),
    "cyclip": (
        lambda v, t, s, w: sum(cyclip_terms(v, t, s, None).values()),
        lambda v, t, s, w: formulas.cyclip(v, t, s),
    ),
    "rince": (lambda v, t, s, w: rince_loss(v, t, s), lambda v, t, s, w: formulas.rince(v, t, s)),
    "rince, robust": (
        lambda v, t, s, w: rince_loss(v, t, s, 0.5, 0.2),
        lambda v, t, s, w: formulas.rince(v, t, s, 0.5, 0.2),
    ),
    "softclip": (
        lambda v, t, s, w: softclip_loss(v, t, s),
        lambda v, t, s, w: formulas.softclip(v, t, s, 0.07),
    ),
    "softclip, softer": (
        lambda v, t, s, w: softclip_loss(v, t, s, 0.6, 0.2),
        lambda v, t, s, w: formulas.softclip(v, t, s, 0.2, 0.6),
    ),
}
each_objective = pytest.mark.parametrize(("loss", "formula"), OBJECTIVES.values(), ids=OBJECTIVES)


@each_objective
@pytest.mark.parametrize("scale", [1.0, 5.0, 40.0])
def test_losses_and_their_gradients_are_the_formulas(loss, formula, scale):
    scale = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
    sides = embeddings(2, dtype=torch.float64, seed=int(scale))
    computed, expected = (one(*sides, scale, WEIGHTS.double()) for one in (loss, formula))
    assert torch.allclose(computed, expected)
    gradients, others = (torch.autograd.grad(one, (*sides, scale)) for one in (computed, expected))
    assert all(torch.allclose(a, b) for a, b in zip(gradients, others, strict=True))


@each_objective
def test_finite_at_the_extremes(loss, formula):
    for image, text in (extremes(2), extremes(1) * 2):
        scale = torch.tensor(100.0, requires_grad=True)
        value = loss(image, text, scale, WEIGHTS[:4])
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(image.grad).all()
        assert torch.isfinite(scale.grad)


@each_objective
def test_autocast_does_not_round(loss, formula):
    image, text = embeddings(2)
    expected = loss(image, text, 100.0, WEIGHTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        computed = loss(image, text, 100.0, WEIGHTS)
    assert computed.dtype == torch.float32
    assert torch.equal(computed, expected)
    assert loss(image.bfloat16(), text.bfloat16(), 100.0, WEIGHTS).dtype == torch.float32


@each_objective
def test_order_of_pairs_does_not_matter(loss, formula):
    image, text = embeddings(2)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    reordered = loss(image[order], text[order], 5.0, WEIGHTS[order])
    assert torch.allclose(loss(image, text, 5.0, WEIGHTS), reordered, atol=1e-6)


@pytest.mark.parametrize("forgotten", [True, False])
def test_an_empty_set_stays_attached(forgotten):
    image, text = embeddings(2)
    terms = gradient_ascent_terms(image, text, 5.0, torch.full((6,), forgotten))
    assert terms[forgotten].item() == 0
    sum(terms).backward()
    assert torch.isfinite(image.grad).all()


def test_no_clean_pair_at_all():
    image, text = embeddings(2)
    loss = osa_loss(image, text, 5.0, torch.zeros(6), normalize=True)
    loss.backward()
    assert loss == 0
    assert (image.grad == 0).all()
