"""RINCE: a contrastive loss that saturates on pairs it cannot fit.

Chuang et al. 2022, "Robust Contrastive Learning against Noisy Views", Eq. 6. As q goes to 0 it
becomes InfoNCE plus log lambda; at q = 1 it is symmetric, and robust to mismatched positives.
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
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.similarity import own_and_all


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create RINCE's objective, at the scale that the model has."""

    def terms(
        image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, batch: GlobalBatch
    ) -> Terms:
        return {"contrastive": rince_loss(image, text, scale)}

    return LossObjective("rince", method_phases(options, train_scale=False), terms)


def rince_loss(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    q: float = 0.1,
    density: float = 0.01,
) -> torch.Tensor:
    """RINCE loss, mean over pairs and directions of -pos^q / q + (density sum_all)^q / q, a scalar.

    `image` and `text` are (N, d) L2-normalised; pos = exp(scale cos) of the own partner, sum_all
    that of all N candidates with it. Powers are taken of logarithms: finite in float32 while
    q scale stays below 88. The loss has no lower bound in the scale, which must not be trained.
    """
    directions = own_and_all(image, text, scale)
    own, log_sums = directions[0, 0], directions[:, 1]
    log_density = torch.tensor(density, dtype=own.dtype, device=own.device).log()
    positive = (q * own).exp()
    image_to_text, text_to_image = (
        (-positive + (q * (log_density + log_sum)).exp()).mean() / q
        for log_sum in log_sums.unbind()
    )
    return (image_to_text + text_to_image) / 2
