"""OSA: the CLIP loss with every pair's share scaled by how clean the estimator finds it.

"One-Step Anti-noise": the weights come from a frozen estimator (`ncclean.scoring.osa`), never from
the model that trains.
"""

from __future__ import annotations

import torch

from ncclean.training.objectives.clip import pair_losses


def osa_loss(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    weights: torch.Tensor,
    normalize: bool = False,
    rows: slice | None = None,
) -> torch.Tensor:
    """OSA's weighted CLIP loss, mean_i w_i (CE_i of image to text + CE_i of text to image) / 2.

    `image` and `text` are (N, d) L2-normalised, `weights` (N,). Pairs of weight 0 still act as
    negatives of the others. The sum is not divided by the weights, so a noisier batch takes a
    smaller step; `normalize` scales them to mean 1 instead (all-zero weights stay zero). `rows`
    limits the outer mean to those pairs.
    """
    losses = pair_losses(image, text, scale, rows=rows)
    weights = weights.to(losses.dtype)
    if normalize:
        weights = weights / weights.mean().clamp_min(torch.finfo(weights.dtype).tiny)
    return ((weights if rows is None else weights[rows]) * losses).mean()
