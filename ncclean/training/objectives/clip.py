"""The CLIP objective."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def clip_loss(image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """Mean of the image-to-text and text-to-image cross-entropies, a scalar.

    `image` and `text` are (N, d) L2-normalised embeddings of pairs; every other pair of the batch
    is a negative. In float32 or better.
    """
    dtype = torch.promote_types(image.dtype, torch.float32)
    logits = scale * image.to(dtype) @ text.to(dtype).T
    target = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
