"""Adversaries take steps of their own, at the rates of the phase."""

import pytest
import torch
from torch import nn

from ncclean.training.objectives.base import GlobalBatch, Phase
from ncclean.training.optimizers import Adversaries
from ncclean.training.process_group import Ranks

BATCH = GlobalBatch(torch.ones(1), torch.zeros(1, dtype=torch.bool))
PHASE = Phase(name="two", epochs=1, learning_rates={"image": 1e-3}, warmup=0.5)


class Judged:
    """An adversary of one weight, whose loss rises with it."""

    adversary_steps = 1

    def __init__(self, factor: float = 1.0) -> None:
        self.weight, self.factor = nn.Parameter(torch.zeros(1)), factor

    def adversaries(self, phase: Phase) -> dict[str, float]:
        return {"judge": 0.1} if phase is PHASE else {}

    def adversary_terms(self, embeddings, batch, phase):
        assert not embeddings["image"].requires_grad
        return {"judge": (self.factor * self.weight * embeddings["image"]).sum()}


def adversaries(objective: Judged, phase: Phase = PHASE) -> Adversaries | None:
    return Adversaries.of(
        objective, phase, {"judge": [objective.weight]}, Ranks(),
        betas=(0.0, 0.0), eps=0.0, clip_norm=1.0,
    )  # fmt: skip


def test_rates_rise_and_fall_as_those_of_the_phase():
    """Adam without memory moves by its rate: of ten steps the first five warm up."""
    objective = Judged()
    made = adversaries(objective)
    image = torch.ones(1, requires_grad=True)
    moves, before = [], 0.0
    for step in range(10):
        made.set_rate(step, 10)
        made.step({"image": image}, BATCH)
        moves.append(before - objective.weight.item())
        before = objective.weight.item()
    assert moves[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert moves[5:] == sorted(moves[5:], reverse=True)
    assert moves[9] < 0.02
    assert image.grad is None
    assert not objective.weight.requires_grad


def test_a_phase_without_adversaries_has_none():
    other = Phase(name="one", epochs=1, learning_rates={"image": 1e-3})
    assert adversaries(Judged(), other) is None


def test_a_loss_that_is_not_finite_stops_before_the_step(refused):
    objective = Judged(float("inf"))
    made = adversaries(objective)
    refused(made.step, {"image": torch.ones(1)}, BATCH)
    assert objective.weight.item() == 0
