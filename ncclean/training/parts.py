"""The parts of a CLIP model that train at rates of their own, and their optimiser."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from ncclean.errors import InputError
from ncclean.training.objectives.base import Phase

_SCALES = ("logit_scale", "logit_bias")


def model_parts(model: nn.Module, own: Mapping[str, nn.Module]) -> dict[str, list[nn.Parameter]]:
    """`image`, `text` and `scale` of an open_clip model, and the objective's own modules."""
    parts: dict[str, list[nn.Parameter]] = {"image": [], "text": [], "scale": []}
    for name, parameter in model.named_parameters():
        if name.split(".")[-1] in _SCALES:
            parts["scale"].append(parameter)
        elif name.startswith("visual."):
            parts["image"].append(parameter)
        else:
            parts["text"].append(parameter)
    return parts | {name: list(module.parameters()) for name, module in own.items()}


def freeze_all_but(parts: Mapping[str, Iterable[nn.Parameter]], phase: Phase) -> None:
    """Let the parts of the phase train and no others.

    Raises `InputError` for a part that is not there.
    """
    unknown = set(phase.learning_rates) - set(parts)
    if unknown:
        raise InputError(
            f"phase {phase.name} trains {sorted(unknown)[0]!r}; the parts are {', '.join(parts)}"
        )
    for name, parameters in parts.items():
        for parameter in parameters:
            parameter.requires_grad_(name in phase.learning_rates)


def make_optimizer(
    parts: Mapping[str, list[nn.Parameter]],
    phase: Phase,
    *,
    weight_decay: float = 0.2,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
) -> torch.optim.AdamW:
    """AdamW over the phase's parts; gains, biases and scales are not decayed."""
    groups = []
    for name, rate in phase.learning_rates.items():
        for decayed in (True, False):
            chosen = [p for p in parts[name] if (p.ndim >= 2) == decayed]
            if chosen:
                decay = weight_decay if decayed else 0.0
                groups.append({"params": chosen, "weight_decay": decay, "peak": rate, "lr": rate})
    return torch.optim.AdamW(groups, betas=betas, eps=eps, fused=True)


def set_learning_rates(
    optimizer: torch.optim.Optimizer, step: int, steps: int, warmup: float
) -> float:
    """Set the rates of a step, counted from 0: a rise, then a cosine. Returns the factor."""
    warm = max(1, round(warmup * steps))
    if step < warm:
        factor = (step + 1) / warm
    else:
        factor = 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor
    return factor
