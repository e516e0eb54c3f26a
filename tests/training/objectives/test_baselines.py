"""What holds for every objective over image and caption embeddings."""

import pytest
import torch

from ncclean.training.objectives.baselines import cyclip_terms, gradient_ascent_terms, softclip_loss
from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.osa import osa_loss
from tests.training.objectives.samples import embeddings, extremes

WEIGHTS = torch.tensor([0.1, 0.0, 0.05, 0.14, 0.0, 0.02])
OBJECTIVES = {
    "clip": lambda v, t, s, w=WEIGHTS: clip_loss(v, t, s),
    "osa": lambda v, t, s, w=WEIGHTS: osa_loss(v, t, s, w[: len(v)]),
    "osa_normalized": lambda v, t, s, w=WEIGHTS: osa_loss(v, t, s, w[: len(v)], normalize=True),
    "gradient_ascent": lambda v, t, s, w=WEIGHTS: sum(
        gradient_ascent_terms(v, t, s, w[: len(v)] < 0.04)
    ),
    "cyclip": lambda v, t, s, w=WEIGHTS: sum(cyclip_terms(v, t, s, None).values()),
    "softclip": lambda v, t, s, w=WEIGHTS: softclip_loss(v, t, s),
}


@pytest.fixture(params=OBJECTIVES)
def loss(request):
    return OBJECTIVES[request.param]


def test_gradients_are_right(loss, request):
    image, text = embeddings(2, dtype=torch.float64)
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    if "softclip" in request.node.name:
        # Its targets are not trained through: held still, the gradient must be that of the logits.
        still = image.detach().clone(), text.detach().clone()  # gradcheck writes in place
        assert torch.autograd.gradcheck(_softclip_to(*still), (image, text, scale))
        found = torch.autograd.grad(loss(image, text, scale), (image, text, scale))
        expected = torch.autograd.grad(
            _softclip_to(*still)(image, text, scale), (image, text, scale)
        )
        assert all(torch.allclose(a, b) for a, b in zip(found, expected, strict=True))
    else:
        assert torch.autograd.gradcheck(loss, (image, text, scale))


def _softclip_to(still_image: torch.Tensor, still_text: torch.Tensor):
    def loss(image, text, scale):
        total = 0.0
        for still, logits in (
            (still_image, scale * image @ text.T),
            (still_text, scale * text @ image.T),
        ):
            target = 0.5 * torch.eye(len(still)) + 0.5 * (still @ still.T / 0.07).softmax(1)
            total = total - (target * logits.log_softmax(1)).sum(1).mean() / 2
        return total

    return loss


def test_finite_at_the_extremes(loss):
    for image, text in (extremes(2), extremes(1) * 2):
        scale = torch.tensor(100.0, requires_grad=True)
        value = loss(image, text, scale)
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(image.grad).all()
        assert torch.isfinite(scale.grad)


def test_autocast_does_not_round(loss):
    image, text = embeddings(2)
    expected = loss(image, text, 100.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(image, text, 100.0)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert loss(image.bfloat16(), text.bfloat16(), 100.0).dtype == torch.float32


def test_order_of_pairs_does_not_matter(loss):
    image, text = embeddings(2)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    reordered = loss(image[order], text[order], 5.0, WEIGHTS[order])
    assert torch.allclose(loss(image, text, 5.0), reordered, atol=1e-6)
