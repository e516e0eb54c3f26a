"""With all differences the losses are those of `--variant released`, without any as published."""

import dataclasses

import pytest
import torch

from ncclean.training.objectives.base import GlobalBatch
from ncclean.training.objectives.ncu import Ncu
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from repair.released import NCU, NCU_TRAINING, OSA, PartlyReleasedNcu, PartlyReleasedOsa
from tests.training.batches import tiny_estimator

PAIRS = 24
OPTIONS = NcuOptions(forget_percent=25.0)
SCALE = torch.tensor(20.0)
BATCH = GlobalBatch(weights=torch.ones(PAIRS), is_forget=torch.zeros(PAIRS, dtype=torch.bool))


def embeddings():
    generator = torch.Generator().manual_seed(0)
    image, *noise = torch.randn(3, PAIRS, 8, generator=generator)
    sides = {"image": image, "text": image + noise[0], "negative": noise[1] - image}
    return {
        name: torch.nn.functional.normalize(side, dim=1).requires_grad_()
        for name, side in sides.items()
    }


def losses(objective):
    """The value of each term of each phase."""
    return {
        f"{phase.name} {name}": value.item()
        for phase in objective.phases
        for name, value in objective.terms(embeddings(), SCALE, BATCH, phase).items()
    }


@pytest.mark.parametrize("variant", ["published", "released"])
def test_all_or_none_are_the_variants(variant):
    partly = PartlyReleasedNcu(NCU if variant == "released" else (), OPTIONS, 5e-5)
    whole = Ncu(dataclasses.replace(OPTIONS, variant=variant))
    assert losses(partly) == pytest.approx(losses(whole), rel=1e-6)


@pytest.mark.parametrize("difference", NCU)
def test_each_changes_a_loss(difference):
    """The stop of the transport changes next to nothing, but something."""
    published, changed = (losses(PartlyReleasedNcu(d, OPTIONS, 5e-5)) for d in ((), (difference,)))
    assert changed != published


def test_the_training_is_that_of_the_code():
    released = Ncu(dataclasses.replace(OPTIONS, variant="released")).phases
    partly = PartlyReleasedNcu(NCU_TRAINING, OPTIONS, 5e-5).phases
    assert partly[0] == released[0]
    assert dataclasses.replace(partly[1], frozen_text_blocks=5) == released[1]


def test_osa_with_all_differences_is_the_variant():
    estimator = tiny_estimator()
    options = ObjectiveOptions(ncu=NcuOptions(variant="released"))
    whole = make_objective("osa", options)
    values = []
    pixels = torch.rand(PAIRS, 3, *estimator.image_size)
    tokens = estimator.tokenize([f"caption {number}" for number in range(PAIRS)])
    for objective in (
        whole,
        PartlyReleasedOsa(OSA, whole.phases, estimator),
        PartlyReleasedOsa((), whole.phases, estimator),
    ):
        objective.modules(estimator.model)
        (phase,) = objective.phases
        encoded = objective.encode(estimator.model, pixels, tokens, phase)
        values.append(objective.terms(encoded, SCALE, BATCH, phase)["contrastive"].item())
    assert values[0] == values[1] != values[2]
