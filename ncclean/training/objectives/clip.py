"""The CLIP objective, and the per-pair cross-entropies that others weigh or soften."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ncclean.training.objectives.similarity import cosines


def clip_loss(image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """Mean of the image-to-text and text-to-image cross-entropies, a scalar.

    `image` and `text` are (N, d) L2-normalised embeddings of pairs; every other pair of the batch
    is a negative. In float32 or better.
    """
    return pair_losses(image, text, scale).mean()


def pair_losses(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """(N, d) L2-normalised embeddings -> (N,) mean of both cross-entropies of each pair.

    With `label_smoothing` that share of the target is spread evenly over all N candidates.
    """
    logits = scale * cosines(image, text)
    target = torch.arange(len(logits), device=logits.device)
    image_to_text, text_to_image = (
        F.cross_entropy(each, target, reduction="none", label_smoothing=label_smoothing)
        for each in (logits, logits.T)
    )
    return (image_to_text + text_to_image) / 2
