"""SoftCLIP: other captions count as partly right where images resemble each other.

Gao et al. 2024, "SoftCLIP: Softer Cross-modal Alignment Makes CLIP Stronger". The original finds
resemblance from detected regions and tags; here, where there is nothing but embeddings, it is the
model's own within-modality similarity.
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
from ncclean.training.objectives.similarity import ALL, both_ways, by_rows, row_cosines


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create SoftCLIP's objective: targets softened by the similarities within a modality."""

    def terms(
        image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, batch: GlobalBatch
    ) -> Terms:
        temperature = options.softclip_temperature
        return {"contrastive": softclip_loss(image, text, scale, temperature=temperature)}

    return LossObjective("softclip", method_phases(options), terms)


def softclip_loss(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    softness: float = 0.5,
    temperature: float = 0.07,
) -> torch.Tensor:
    """SoftCLIP loss: mean of both cross-entropies to softened targets, a scalar.

    `image` and `text` are (N, d) L2-normalised. The targets of images are `softened_targets` of the
    images, those of captions of the captions; they are not trained through.
    """

    def losses(rows: slice) -> torch.Tensor:
        targets = (
            softened_targets(modality, softness, temperature, rows) for modality in (image, text)
        )
        return torch.stack(
            [
                -(target * logits.log_softmax(dim=1)).sum(dim=1)
                for target, logits in zip(targets, both_ways(image, text, rows, scale), strict=True)
            ]
        )

    image_to_text, text_to_image = torch.cat(by_rows(losses, len(image)), dim=1).unbind()
    return (image_to_text.mean() + text_to_image.mean()) / 2


@torch.no_grad()
def softened_targets(
    modality: torch.Tensor, softness: float = 0.5, temperature: float = 0.07, rows: slice = ALL
) -> torch.Tensor:
    """(N, N) softened targets, each row a distribution, from (N, d) L2-normalised embeddings.

    With `rows` those rows, (R, N).

    1 - softness on the pair itself, and softness times the softmax of its cosines to all over
    `temperature`. That is not the model's own: at a trained CLIP's 0.01 the softmax is the identity
    (over 256 pairs it leaves 0 to 12 % to others, at 0.07 it leaves 14 to 87 %).
    """
    target = softness * (row_cosines(modality, modality, rows) / temperature).softmax(dim=1)
    target.diagonal(rows.start or 0).add_(1 - softness)
    return target
