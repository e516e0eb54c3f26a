"""The parameter groups of a CLIP model, each with a learning rate of its own, and the optimiser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ncclean.errors import InputError
from ncclean.training.objectives.base import Phase

_SCALES = ("logit_scale", "logit_bias")


def parameter_groups(
    model: nn.Module, own: Mapping[str, nn.Module]
) -> dict[str, list[nn.Parameter]]:
    """Parameters by group: `image`, `text`, `scale` of the model, the objective's modules."""
    groups: dict[str, list[nn.Parameter]] = {"image": [], "text": [], "scale": []}
    for name, parameter in model.named_parameters():
        if name.split(".")[-1] in _SCALES:
            groups["scale"].append(parameter)
        elif _is_visual(name):
            groups["image"].append(parameter)
        else:
            groups["text"].append(parameter)
    return groups | {name: list(module.parameters()) for name, module in own.items()}


def freeze_all_but(groups: Mapping[str, Iterable[nn.Parameter]], phase: Phase) -> None:
    """Let only the parameter groups of a phase train.

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
    """Put the towers that train in training mode and frozen ones in evaluation mode.

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
    """AdamW over the phase's parameter groups; gains, biases and scales have no weight decay."""
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
    """Whether a module or parameter of an open_clip model belongs to the image tower."""
    return name.split(".")[0] == "visual"
