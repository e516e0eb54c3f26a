"""The in-batch-normalised CLIP score (negCLIPLoss).

Wang et al. 2024, "CLIPLoss and Norm-Based Data Selection Methods for Multimodal Contrastive
Learning": the strongest training-free filter published for DataComp.
"""

from __future__ import annotations

import torch


def neg_clip_loss(similarity: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """Return (N,) negCLIPLoss scores of a block from its (N, N) cosines S; higher is cleaner.

    S_ii - (logsumexp_j(scale S_ij) + logsumexp_j(scale S_ji)) / (2 scale), in units of cosine: the
    pair's cosine, normalised by those of its image and its caption with all others. Computed in
    float32 or better.
    """
    values = similarity if similarity.dtype == torch.float64 else similarity.float()
    logits = scale * values
    return normalised_score(
        values.diagonal(), logits.logsumexp(dim=1), logits.logsumexp(dim=0), scale
    )


def mismatched_scores(
    similarity: torch.Tensor,
    i2t_rivals: torch.Tensor,
    t2i_rivals: torch.Tensor,
    scale: float,
    among: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return (n, m) negCLIPLoss scores of image i with caption j as a pair, from their cosines S.

    S_ij - (logsumexp_{l != i} scale S_il + logsumexp_{l != j} scale S_lj) / (2 scale). `i2t_rivals`
    (n,) and `t2i_rivals` (m,) are these logsumexps. They leave out the true partners of image i and
    of caption j, since a mismatched pair has none in its block; with them, known mismatches would
    look worse than true ones.

    `among` tells which of the (n,) images and (m,) captions are already in the logsumexps, all by
    default. For the others, the logit of S_ij is added.
    """
    i2t, t2i = i2t_rivals[:, None], t2i_rivals[None]
    if among is not None:
        images, captions = among
        logits = scale * similarity
        i2t = torch.where(captions, i2t, torch.logaddexp(i2t, logits))
        t2i = torch.where(images[:, None], t2i, torch.logaddexp(t2i, logits))
    return similarity - (i2t + t2i) / (2 * scale)


def binned(score: torch.Tensor) -> torch.Tensor:
    """Map negCLIPLoss scores to the range [-1, 1] of a cosine histogram: add 1, then clamp.

    The score of a pair without rivals, 0, becomes 1.
    """
    return (score + 1).clamp(-1, 1)


def normalised_score(
    own: torch.Tensor,
    i2t_partition: torch.Tensor,
    t2i_partition: torch.Tensor,
    scale: float | torch.Tensor,
) -> torch.Tensor:
    """Return (N,) negCLIPLoss scores from own cosines and logsumexps of the logits.

    `own` (N,) are the cosines of the pairs, and the partitions (N,) the logsumexps of the logits'
    rows and columns: see `neg_clip_loss`.
    """
    return own - (i2t_partition + t2i_partition) / (2 * scale)
