"""CyCLIP: the CLIP loss, and two consistencies of the shared space.

Goel et al. 2022, "CyCLIP: Cyclic Contrastive Language-Image Pretraining", Eqs. 2 to 4.
"""

from __future__ import annotations

import torch

from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.similarity import cosines


def cyclip_loss(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    in_modal: float = 0.25,
    cross_modal: float = 0.25,
) -> torch.Tensor:
    """The CLIP loss plus both weighted consistencies of (N, d) L2-normalised pairs, a scalar."""
    consistency = in_modal * in_modal_consistency(image, text)
    consistency = consistency + cross_modal * cross_modal_consistency(image, text)
    return clip_loss(image, text, scale) + consistency


def in_modal_consistency(image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """(1/N) sum_jk (<v_j, v_k> - <t_j, t_k>)^2: captions as far apart as their images."""
    difference = cosines(image, image) - cosines(text, text)
    return difference.square().sum() / len(image)


def cross_modal_consistency(image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """(1/N) sum_jk (<v_j, t_k> - <v_k, t_j>)^2: a symmetric matrix of image-text cosines."""
    similarity = cosines(image, text)
    return (similarity - similarity.T).square().sum() / len(image)
