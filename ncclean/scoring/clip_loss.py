"""The in-batch-normalised CLIP score (negCLIPLoss).

Wang et al. 2024, "CLIPLoss and Norm-Based Data Selection Methods for Multimodal Contrastive
Learning": the strongest training-free filter published for DataComp.
"""

from __future__ import annotations

import torch


def neg_clip_loss(similarity: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """Return (N,) scores from (N, N) cosines; higher is cleaner.

    s_i - (logsumexp_j(scale S_ij) + logsumexp_j(scale S_ji)) / (2 scale): the cosine minus the
    pair's scores with everything else, in units of cosine. Float32 or better.
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
    """Return (n, m) negCLIPLoss of image i with caption j as a pair, from their (n, m) cosines.

    S_ij - (logsumexp_{l != i} scale S_il + logsumexp_{l != j} scale S_lj) / (2 scale), with the
    (n,) and (m,) logsumexps of their rivals: without either's own partner, since a mismatched pair
    has none in its block. With it, known mismatches would look worse than true ones.

    `among` says which (n,) images and (m,) captions are rivals themselves, all by default. Others
    are added, as a pair's partner is.
    """
    i2t, t2i = i2t_rivals[:, None], t2i_rivals[None]
    if among is not None:
        images, captions = among
        logits = scale * similarity
        i2t = torch.where(captions, i2t, torch.logaddexp(i2t, logits))
        t2i = torch.where(images[:, None], t2i, torch.logaddexp(t2i, logits))
    return similarity - (i2t + t2i) / (2 * scale)


def binned(score: torch.Tensor) -> torch.Tensor:
    """Clamp scores to the range of a histogram of cosines; a score without rivals becomes 1."""
    return (score + 1).clamp(-1, 1)


def normalised_score(
    own: torch.Tensor,
    i2t_partition: torch.Tensor,
    t2i_partition: torch.Tensor,
    scale: float | torch.Tensor,
) -> torch.Tensor:
    """Return `neg_clip_loss` from (N,) own cosines and the logits' row and column logsumexps."""
    return own - (i2t_partition + t2i_partition) / (2 * scale)
