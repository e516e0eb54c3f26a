"""The parameter groups of a phase, their optimiser, and adversaries with their own optimiser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ncclean.errors import InputError, TrainingError
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Objective, Phase, total
from ncclean.training.process_group import Ranks, average_gradients

_SCALES = ("logit_scale", "logit_bias")


def parameter_groups(
    model: nn.Module, modules: Mapping[str, nn.Module]
) -> dict[str, list[nn.Parameter]]:
    """Return parameters by group: the model's `image`, `text`, `scale`, the objective's modules."""
    groups: dict[str, list[nn.Parameter]] = {"image": [], "text": [], "scale": []}
    for name, parameter in model.named_parameters():
        if name.split(".")[-1] in _SCALES:
            groups["scale"].append(parameter)
        elif _is_visual(name):
            groups["image"].append(parameter)
        else:
            groups["text"].append(parameter)
    return groups | {name: list(module.parameters()) for name, module in modules.items()}


def freeze_all_but(groups: Mapping[str, Iterable[nn.Parameter]], phase: Phase) -> None:
    """Train only the parameter groups of a phase; freeze the others.

    Raises `InputError` for an unknown group.
    """
    unknown = set(phase.learning_rates) - set(groups)
    if unknown:
        raise InputError(
            f"phase {phase.name} trains {sorted(unknown)[0]!r}; the groups are {', '.join(groups)}"
        )
    for name, parameters in groups.items():
        for parameter in parameters:
            parameter.requires_grad_(name in phase.learning_rates)


def freeze_text_blocks(model: nn.Module, count: int) -> None:
    """Freeze the first blocks of the text tower, and the embeddings below them."""
    if not count:
        return
    tower: Any = getattr(model, "text", model)
    for block in list(tower.transformer.resblocks)[:count]:
        block.requires_grad_(False)
    tower.token_embedding.requires_grad_(False)
    tower.positional_embedding.requires_grad_(False)


def set_training_mode(model: nn.Module, phase: Phase) -> None:
    """Put the training towers in training mode and frozen ones in evaluation mode.

    A frozen tower is a fixed function: no dropout, and BatchNorm keeps its statistics.
    """
    for name, module in model.named_modules():
        module.training = ("image" if _is_visual(name) else "text") in phase.learning_rates


def make_optimizer(
    groups: Mapping[str, list[nn.Parameter]],
    phase: Phase,
    *,
    weight_decay: float = 0.2,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
) -> torch.optim.AdamW:
    """Return AdamW over the phase's parameter groups; weight decay is for weight matrices only."""
    settings = []
    for name, rate in phase.learning_rates.items():
        for decayed in (True, False):
            chosen = [p for p in groups[name] if (p.ndim >= 2) == decayed]
            if chosen:
                decay = weight_decay if decayed else 0.0
                settings.append({"params": chosen, "weight_decay": decay, "peak": rate, "lr": rate})
    return torch.optim.AdamW(settings, betas=betas, eps=eps, fused=True)


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set each group's learning rate to a share of its highest one."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def _is_visual(name: str) -> bool:
    """Check whether a module or parameter of an open_clip model belongs to the image tower."""
    return name.split(".")[0] == "visual"


class Adversaries:
    """Trains the adversaries of one phase of an objective; they are frozen outside their own steps.

    They see the gathered embeddings, so each rank has their whole gradient; the mean over ranks
    only prevents rounding from driving the ranks apart.
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
        """Return the adversaries that train in a phase, None if it has none."""
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
        """Return the state of the adversaries' optimiser.

        The weights are in the objective's modules.
        """
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)
