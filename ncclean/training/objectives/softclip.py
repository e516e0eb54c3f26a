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
    temperature: float = 0.07,
) -> torch.Tensor:
    """Mean of both cross-entropies to softened targets, a scalar.

    `image` and `text` are (N, d) L2-normalised. The targets of images are `softened_targets` of the
    images, those of captions of the captions; they are not trained through.
    """
    logits = scale * cosines(image, text)
    image_target, text_target = (
        softened_targets(modality, softness, temperature) for modality in (image, text)
    )
    image_to_text = -(image_target * logits.log_softmax(dim=1)).sum(dim=1).mean()
    text_to_image = -(text_target * logits.T.log_softmax(dim=1)).sum(dim=1).mean()
    return (image_to_text + text_to_image) / 2


@torch.no_grad()
def softened_targets(
    modality: torch.Tensor, softness: float = 0.5, temperature: float = 0.07
) -> torch.Tensor:
    """(N, d) L2-normalised embeddings of one modality -> (N, N) targets, each row a distribution.

    1 - softness on the pair itself, and softness times the softmax of its cosines to all over
    `temperature`. That is not the model's own: at a trained CLIP's 0.01 the softmax is the identity
    (over 256 pairs it leaves 0 to 12 % to others, at 0.07 it leaves 14 to 87 %).
    """
    target = softness * (cosines(modality, modality) / temperature).softmax(dim=1)
    target.diagonal().add_(1 - softness)
    return target
