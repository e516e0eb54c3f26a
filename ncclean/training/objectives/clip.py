"""The CLIP objective, and per-pair cross-entropies that others weigh or soften."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ncclean.training.objectives.base import (
    GlobalBatch,
    LossObjective,
    Objective,
    Phase,
    Terms,
    Tokenizer,
    method_phases,
)
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.similarity import ALL, both_ways, by_rows


class Clip(LossObjective):
    """The CLIP objective: all pairs count as matched."""

    def __init__(self, phases: tuple[Phase, ...]) -> None:
        super().__init__("clip", phases, clip_terms, is_per_pair=True)


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create the CLIP objective."""
    return Clip(method_phases(options))


def clip_terms(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor,
    batch: GlobalBatch,
    rows: slice | None = None,
) -> Terms:
    """Return the CLIP loss of a batch, or of its pairs `rows`, as the one term `contrastive`."""
    return {"contrastive": clip_loss(image, text, scale, rows)}


def clip_loss(
    image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor | float, rows: slice | None = None
) -> torch.Tensor:
    """Return the CLIP loss: mean of the image-to-text and text-to-image cross-entropies, a scalar.

    `image` and `text` are (N, d) L2-normalised embeddings of pairs; every other pair of the batch
    is a negative. Computed in float32 or better. `rows` limits the mean to those pairs.
    """
    return pair_losses(image, text, scale, rows=rows).mean()


def pair_losses(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    label_smoothing: float = 0.0,
    rows: slice | None = None,
) -> torch.Tensor:
    """Return (N,) CLIP losses, one for each pair, from (N, d) L2-normalised embeddings.

    With `label_smoothing`, that share of the target is spread evenly over all N candidates. `rows`
    limits the result to those pairs, (R,).
    """
    target = torch.arange(len(image), device=image.device)

    def losses(rows: slice) -> torch.Tensor:
        both = tuple(both_ways(image, text, rows, scale))
        image_to_text, text_to_image = (
            F.cross_entropy(logits, target[rows], reduction="none", label_smoothing=label_smoothing)
            for logits in both
        )
        return (image_to_text + text_to_image) / 2

    return torch.cat(by_rows(losses, len(image), rows or ALL))
