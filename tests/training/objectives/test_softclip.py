import math

import pytest
import torch

from ncclean.training.objectives.baselines import softclip_loss, softened_targets
from ncclean.training.objectives.clip import clip_loss
from tests.training.objectives.samples import embeddings


def test_by_hand():
    """Two equal images, two unlike captions, scale 1: the images' targets are (.75, .25)."""
    image, text = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.eye(2)
    # Logits [[1, 0], [1, 0]]; over captions the softmax is (p, 1 - p), over images a half each.
    p = 1 / (1 + math.exp(-1))
    by_image = -(math.log(p) + math.log(1 - p)) / 2
    by_text = math.log(2)
    loss = softclip_loss(image, text, 1.0)
    assert loss.item() == pytest.approx((by_image + by_text) / 2, abs=1e-6)


def test_without_softness_it_is_the_clip_loss():
    image, text = embeddings(2)
    assert torch.allclose(softclip_loss(image, text, 5.0, 0.0), clip_loss(image, text, 5.0))


def test_targets_are_not_trained_through():
    """Equal captions, two images: only the logits' share of the gradient reaches the images."""
    image = torch.tensor([[1.0, 0.0], [0.6, 0.8]], requires_grad=True)
    text = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    softclip_loss(image, text, 1.0).backward()
    # Over captions all logits are equal, so the image-to-text part is flat along the captions.
    # Over images, softmax minus target: each caption's target is (.75, .25) and (.25, .75).
    first = torch.tensor([1.0, 0.6]).softmax(0)
    pull = ((first - torch.tensor([0.75, 0.25])) + (first - torch.tensor([0.25, 0.75]))) / 4
    assert torch.allclose(image.grad, torch.stack([pull, torch.zeros(2)], dim=1), atol=1e-6)


def test_targets_have_a_temperature_of_their_own():
    """Cosine .5 at temperature .25: the other gets sigmoid(-2) of the soft half."""
    modality = torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5]])
    other = 0.5 / (1 + math.exp(2))
    expected = torch.tensor([[1 - other, other], [other, 1 - other]])
    assert torch.allclose(softened_targets(modality, 0.5, 0.25), expected)


def test_targets_stay_soft_at_a_large_scale():
    """At a trained CLIP's scale of 100 the targets of the scale itself would be hard."""
    image, text = embeddings(2)
    soft = softclip_loss(image, text, 100.0, temperature=0.07)
    hard = softclip_loss(image, text, 100.0, temperature=0.01)
    by_hand = sum(
        -(softened_targets(own, 0.5, 0.07) * (100 * own @ other.T).log_softmax(1)).sum(1).mean() / 2
        for own, other in ((image, text), (text, image))
    )
    assert soft.item() == pytest.approx(by_hand.item(), rel=1e-5)
    assert abs(soft - hard) > 0.1


def test_targets_of_images_are_those_of_the_images():
    """Three images that are nearly alike, with captions that are far apart."""
    image = torch.tensor([[1.0, 0.1, 0.0], [1.0, 0.0, 0.1], [1.0, 0.0, 0.0]])
    image, text = torch.nn.functional.normalize(image, dim=1), torch.eye(3)[[1, 0, 2]]
    logits = 5 * image @ text.T
    expected = 0.0
    for each, modality in ((logits, image), (logits.T, text)):
        target = 0.4 * torch.eye(3) + 0.6 * (modality @ modality.T / 0.2).softmax(1)
        expected = expected - (target * each.log_softmax(1)).sum(1).mean() / 2
    found = softclip_loss(image, text, 5.0, softness=0.6, temperature=0.2)
    assert torch.allclose(found, expected)
