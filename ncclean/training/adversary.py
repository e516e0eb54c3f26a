"""The adversaries of an alternating objective, with an optimiser of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ncclean.errors import TrainingError
from ncclean.training.grad_cache import total
from ncclean.training.gradient_average import average_gradients
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Objective, Phase
from ncclean.training.parameter_groups import make_optimizer, set_learning_rates
from ncclean.training.process_group import Ranks


class Adversaries:
    """Trains the adversaries of one phase; they are frozen outside their own steps.

    They see the gathered embeddings, so each rank has their whole gradient; the mean over ranks
    only keeps rounding from driving the ranks apart.
    """

    def __init__(
        self,
        objective: Objective,
        phase: Phase,
        rates: Mapping[str, float],
        groups: Mapping[str, list[nn.Parameter]],
        ranks: Ranks,
        *,
        betas: tuple[float, float],
        eps: float,
        clip_norm: float,
    ) -> None:
        self._objective, self._phase, self._ranks = objective, phase, ranks
        self._clip_norm = clip_norm
        named = Phase(name=phase.name, epochs=phase.epochs, learning_rates=rates)
        self._optimizer = make_optimizer(groups, named, weight_decay=0.0, betas=betas, eps=eps)
        self._parameters = [p for name in rates for p in groups[name]]

    @classmethod
    def of(
        cls,
        objective: Objective,
        phase: Phase,
        groups: Mapping[str, list[nn.Parameter]],
        ranks: Ranks,
        *,
        betas: tuple[float, float],
        eps: float,
        clip_norm: float,
    ) -> Adversaries | None:
        """The adversaries that train in a phase, None if it has none."""
        rates = objective.adversaries(phase)
        if not rates:
            return None
        return cls(
            objective, phase, rates, groups, ranks, betas=betas, eps=eps, clip_norm=clip_norm
        )

    def set_rate(self, step: int, steps: int) -> None:
        """Set the adversaries' learning rate to the schedule's share of the highest one."""
        set_learning_rates(self._optimizer, self._phase.rate(step, 0, steps, steps))

    def step(self, embeddings: Embeddings, batch: GlobalBatch) -> None:
        """Train the adversaries on detached embeddings, before a step of the model.

        Raises `TrainingError`, before a step is taken, if their loss is not finite.
        """
        detached = {name: embedding.detach() for name, embedding in embeddings.items()}
        for parameter in self._parameters:
            parameter.requires_grad_(True)
        for _ in range(self._objective.adversary_steps):
            self._step(detached, batch)
        for parameter in self._parameters:
            parameter.requires_grad_(False)

    def _step(self, detached: Embeddings, batch: GlobalBatch) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss = total(self._objective.adversary_terms(detached, batch, self._phase))
        if not torch.isfinite(loss):
            raise TrainingError(
                f"the loss of the adversaries is {loss.item()} in phase {self._phase.name}; use a "
                "smaller learning rate, or fp32"
            )
        loss.backward()
        average_gradients(self._parameters, self._ranks)
        nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """State of the adversaries' optimiser; the objective's modules hold their weights."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)
