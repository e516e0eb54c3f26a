import pytest
import torch
from torch import nn

from ncclean.training.batch_step import backward_in_pieces
from ncclean.training.objectives.clip import clip_loss


class Towers(nn.Module):
    """Two small towers with dropout, and a scale."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image = nn.Sequential(
            nn.Linear(6, 16), nn.Dropout(dropout), nn.GELU(), nn.Linear(16, 4)
        )
        self.text = nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))


def problem(dropout: float) -> tuple:
    """Towers, and how they encode rows and what they lose; dropout is drawn from here on."""
    torch.manual_seed(1)
    images, texts = torch.randn(12, 6), torch.randn(12, 5)
    towers = Towers(dropout)
    torch.manual_seed(2)

    def encode(rows: slice) -> dict:
        return {
            "image": nn.functional.normalize(towers.image(images[rows]), dim=-1),
            "text": nn.functional.normalize(towers.text(texts[rows]), dim=-1),
        }

    def terms(found: dict) -> dict:
        loss = clip_loss(found["image"], found["text"], towers.scale.exp())
        return {"contrastive": loss, "size": 0.1 * found["image"].abs().sum()}

    return towers, encode, terms


def gradients(parts: int, dropout: float = 0.0) -> tuple[dict, dict]:
    towers, encode, terms = problem(dropout)
    size = 12 // parts
    found = backward_in_pieces(
        [slice(start, start + size) for start in range(0, 12, size)], encode, terms
    )
    return found, {name: p.grad for name, p in towers.named_parameters()}


@pytest.mark.parametrize("parts", [2, 3, 12])
def test_gradients_are_those_of_the_whole_batch(parts):
    terms, whole = gradients(1)
    found, cached = gradients(parts)
    assert found["contrastive"].item() == pytest.approx(terms["contrastive"].item(), abs=1e-6)
    for name in whole:
        assert torch.allclose(cached[name], whole[name], atol=1e-5), name


def test_dropout_is_the_same_in_both_passes():
    """With dropout, the gradients are those of one graph over parts that drew what these drew."""
    _, cached = gradients(3, dropout=0.5)
    towers, encode, terms = problem(dropout=0.5)
    encoded = [encode(slice(start, start + 4)) for start in range(0, 12, 4)]
    whole = {name: torch.cat([each[name] for each in encoded]) for name in encoded[0]}
    sum(terms(whole).values()).backward()
    for name, parameter in towers.named_parameters():
        assert torch.allclose(cached[name], parameter.grad, atol=1e-5), name
    _, without = gradients(3)
    assert not torch.allclose(cached["image.0.weight"], without["image.0.weight"], atol=1e-3)


def test_frozen_embeddings_need_no_gradient():
    image = torch.randn(4, 3)
    weight = nn.Parameter(torch.eye(3))

    def encode(rows: slice) -> dict:
        return {"image": image[rows], "text": image[rows] @ weight}

    backward_in_pieces(
        [slice(0, 2), slice(2, 4)], encode,
        lambda found: {"loss": clip_loss(found["image"], found["text"], 1.0)},
    )  # fmt: skip
    assert weight.grad is not None
