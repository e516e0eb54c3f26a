"""Gradient ascent: unlearn the forget set by raising its CLIP loss.

The baseline of NCU (section 5.3, Table 4): minus the CLIP loss on the forget set against false
positives, the CLIP loss with label smoothing on the rest against false negatives.
"""

from __future__ import annotations

import torch

from ncclean.training.objectives.base import (
    GlobalBatch,
    LossObjective,
    Objective,
    Terms,
    Tokenizer,
    method_phases,
)
from ncclean.training.objectives.clip import pair_losses
from ncclean.training.objectives.ncu import forget_split
from ncclean.training.objectives.options import ObjectiveOptions


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create the objective of gradient ascent."""
    ncu = options.ncu

    def terms(
        image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, batch: GlobalBatch
    ) -> Terms:
        forget = batch.is_forget
        if ncu.split != "table":
            forget = forget_split(image, text, scale, ncu.forget_percent)
        forgotten, retained = gradient_ascent_terms(image, text, scale, forget)
        return {"forget": forgotten, "retain": retained}

    return LossObjective("gradient_ascent", method_phases(options), terms)


def gradient_ascent_terms(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    forget: torch.Tensor,
    label_smoothing: float = 0.1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, d) L2-normalised embeddings, (N,) bool -> minus the loss to forget, the loss to retain.

    Each is the CLIP loss of its set alone, with the negatives of that set. An empty set gives a
    zero that is attached to the graph. The paper does not give its smoothing; 0.1 is ours.
    """
    forgotten = _mean(pair_losses(image[forget], text[forget], scale))
    retained = _mean(pair_losses(image[~forget], text[~forget], scale, label_smoothing))
    return -forgotten, retained


def _mean(losses: torch.Tensor) -> torch.Tensor:
    return losses.sum() / max(1, len(losses))
