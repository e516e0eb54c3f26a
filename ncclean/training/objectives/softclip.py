"""SoftCLIP: other captions count as partly right where images resemble each other.

Gao et al. 2024, "SoftCLIP: Softer Cross-modal Alignment Makes CLIP Stronger". The original finds
resemblance from detected regions and tags; here, where there is nothing but embeddings, it is the
model's own within-modality similarity.
"""

from __future__ import annotations

import torch

from ncclean.training.objectives.similarity import cosines


def softclip_loss(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    softness: float = 0.5,
) -> torch.Tensor:
    """Mean of both cross-entropies to softened targets, a scalar.

    `image` and `text` are (N, d) L2-normalised. The target of image i is (1 - softness) on its own
    caption and softness times the softmax of its similarities to all images (at the same scale);
    a caption's comes from the captions. Targets are not trained through.
    """
    logits = scale * cosines(image, text)
    with torch.no_grad():
        image_target, text_target = (
            _softened(scale * cosines(modality, modality), softness) for modality in (image, text)
        )
    image_to_text = -(image_target * logits.log_softmax(dim=1)).sum(dim=1).mean()
    text_to_image = -(text_target * logits.T.log_softmax(dim=1)).sum(dim=1).mean()
    return (image_to_text + text_to_image) / 2


def _softened(similarity: torch.Tensor, softness: float) -> torch.Tensor:
    """(N, N) within one modality -> (N, N) targets, each row a distribution."""
    target = softness * similarity.softmax(dim=1)
    target.diagonal().add_(1 - softness)
    return target
