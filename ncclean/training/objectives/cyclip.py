"""CyCLIP: the CLIP loss, and two consistencies of the shared space.

Goel et al. 2022, "CyCLIP: Cyclic Contrastive Language-Image Pretraining", Eqs. 2 to 4.
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
from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.similarity import both_ways, by_rows, row_cosines


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create CyCLIP's objective."""
    return LossObjective("cyclip", method_phases(options), cyclip_terms)


def cyclip_terms(
    image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, batch: GlobalBatch
) -> Terms:
    """CyCLIP's loss terms: the CLIP loss, and both consistencies, a quarter each."""
    return {
        "contrastive": clip_loss(image, text, scale),
        "in_modal": 0.25 * in_modal_consistency(image, text),
        "cross_modal": 0.25 * cross_modal_consistency(image, text),
    }


def in_modal_consistency(image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """CyCLIP's in-modal term, (1/N) sum_jk (<v_j, v_k> - <t_j, t_k>)^2."""

    def squares(rows: slice) -> torch.Tensor:
        difference = row_cosines(image, image, rows) - row_cosines(text, text, rows)
        return difference.square().sum()

    return torch.stack(by_rows(squares, len(image))).sum() / len(image)


def cross_modal_consistency(image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """CyCLIP's cross-modal term, (1/N) sum_jk (<v_j, t_k> - <v_k, t_j>)^2."""

    def squares(rows: slice) -> torch.Tensor:
        one, other = both_ways(image, text, rows)
        return (one - other).square().sum()

    return torch.stack(by_rows(squares, len(image))).sum() / len(image)
