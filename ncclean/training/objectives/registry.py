"""The objectives by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ncclean.errors import InputError
from ncclean.training.objectives.base import (
    Embeddings,
    GlobalBatch,
    Objective,
    PairObjective,
    Phase,
    Terms,
    whole_model,
)
from ncclean.training.objectives.clip import clip_loss


class Clip(PairObjective):
    """The CLIP objective: all pairs count as matched."""

    name = "clip"

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """`contrastive`."""
        return {"contrastive": clip_loss(embeddings["image"], embeddings["text"], scale)}


Factory = Callable[[float, int], Objective]
_FACTORIES: dict[str, Factory] = {
    "clip": lambda rate, epochs: Clip(whole_model(rate, epochs)),
}


def make_objective(name: str, *, learning_rate: float, epochs: int) -> Objective:
    """The objective of that name. Raises `InputError` for an unknown one."""
    if name not in _FACTORIES:
        raise InputError(f"--method takes {', '.join(_FACTORIES)}, got {name!r}")
    return _FACTORIES[name](learning_rate, epochs)
