"""Low precision stays in the towers: norms, products and float64 where a device has none."""

import pytest
import torch

from ncclean.scoring.double import doubled
from ncclean.training.objectives.base import Objective, whole_model
from ncclean.training.objectives.ncu_prompt import NegativePrefixes, NegativePrompt
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.objectives.registry import METHODS, make_objective
from ncclean.training.objectives.similarity import cosines
from ncclean.training.run_files import read_results
from ncclean.training.transport import masked_sinkhorn
from tests.training.batches import FixedBatches, tiny_estimator, train


def test_cosines_are_float32_under_autocast():
    first, second = torch.nn.functional.normalize(torch.randn(2, 8, 64), dim=-1)
    with torch.autocast("cpu", torch.bfloat16):
        found = cosines(first, second)
    assert torch.equal(found, first @ second.T)


def encoded(objective, estimator):
    objective.modules(estimator.model)
    batch = FixedBatches(size=16)._batch(0)
    with estimator.autocast():
        return objective.encode(
            estimator.model.train(),
            estimator.normalized(batch.pixels),
            estimator.tokenize(batch.captions),
            objective.phases[0],
        )


@pytest.mark.parametrize(
    ("method", "options"),
    [(method, {}) for method in METHODS if method != "disncl"]
    + [("ncu", {"ncu": NcuOptions(negative="prefixes")})],
)
def test_embeddings_in_training_have_length_one(method, options):
    """In bf16 a norm was .997 to 1.004, and a logit off by as much times the scale."""
    estimator = tiny_estimator("bf16")
    objective = make_objective(method, ObjectiveOptions(**options), estimator.tokenize)
    found = encoded(objective, estimator)
    assert set(found) == {"image", "text"} | ({"negative"} if method == "ncu" else set())
    for name, embedding in found.items():
        assert embedding.dtype == torch.float32
        lengths = embedding.double().norm(dim=1)
        assert torch.allclose(lengths, torch.ones_like(lengths), atol=1e-6), name


@pytest.mark.parametrize("kind", [NegativePrompt, NegativePrefixes])
def test_negative_texts_are_normalised_outside_autocast(kind):
    estimator = tiny_estimator("bf16")
    made = (
        kind.for_model(estimator.model)
        if kind is NegativePrompt
        else kind.for_model(estimator.model, estimator.tokenize)
    )
    with estimator.autocast():
        found = made(estimator.model, estimator.tokenize(["a cat", "two dogs"]))
    assert found.dtype == torch.float32
    assert torch.allclose(found.double().norm(dim=1), torch.ones(2).double(), atol=1e-6)


class Steep(Objective):
    """Gradients that half precision cannot hold at the first loss scales."""

    name = "steep"

    def __init__(self, factor: float) -> None:
        super().__init__(whole_model(1e-3, 2))
        self.factor = factor

    def terms(self, embeddings, scale, batch, phase):
        return {"steep": self.factor * (embeddings["image"] * embeddings["text"]).sum()}


def test_an_overflow_is_skipped_until_the_loss_scale_fits(tmp_path):
    estimator = tiny_estimator("fp16")
    start = {name: value.clone() for name, value in estimator.model.state_dict().items()}
    end = train(tmp_path, objective=Steep(10.0), estimator=estimator)
    assert all(torch.isfinite(value).all() for value in end.values() if value.is_floating_point())
    assert any(not torch.equal(value, start[name]) for name, value in end.items())
    norms = [record["gradient_norm"] for record in read_results(tmp_path)]
    assert norms[0] is None  # skipped, and not the number Infinity that JSON does not have
    assert norms[-1] is not None


def test_a_gradient_that_no_loss_scale_mends_is_an_error(tmp_path, refused):
    estimator = tiny_estimator("fp16")
    objective = Steep(1.0)
    objective.phases = whole_model(1e-3, 20)

    def terms(embeddings, scale, batch, phase):
        image = embeddings["image"]
        return {"steep": (image - image.detach()).abs().sqrt().sum()}  # an infinite slope at 0

    objective.terms = terms
    start = {name: value.clone() for name, value in estimator.model.state_dict().items()}
    refused(train, tmp_path, objective=objective, estimator=estimator)
    for name, value in estimator.model.state_dict().items():
        assert torch.equal(value, start[name])


def test_no_float64_where_the_device_has_none(monkeypatch, refused):
    class Apple(torch.Tensor):
        """A tensor on a device without float64."""

        device = torch.device("mps")

        def double(self):
            raise TypeError("Cannot convert a MPS Tensor to float64")

        def cpu(self):
            return self.as_subclass(torch.Tensor)

    values = torch.tensor([1.0, 2.0])
    assert doubled(values.as_subclass(Apple)).dtype == torch.float64

    def refuse(self):
        raise TypeError("Cannot convert a MPS Tensor to float64")

    monkeypatch.setattr(torch.Tensor, "double", refuse)
    # Two rows share the only column that either may use: each alone would fit.
    mask = torch.tensor([[1, 0, 0], [1, 0, 0], [1, 1, 1]])
    refused(
        masked_sinkhorn,
        torch.rand(3, 3),
        mask,
        torch.full((3,), 1 / 3),
        torch.tensor([0.4, 0.3, 0.3]),
    )
