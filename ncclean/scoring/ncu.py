"""NCU: how confidently a pair picks its own partner, and the forget set.

"Noisy Correspondence Unlearning": a model is made to forget the least confident pairs of a batch.
"""

from __future__ import annotations

import torch

from ncclean.errors import InputError

# Matrix values scaled at once: 256 MB in float32, all of N = 8192.
_BLOCK = 1 << 26


def clean_confidence(similarity: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """Return NCU's confidence, in (0, 1], that each of N pairs is clean, from (N, N) cosines.

    Mean of the diagonals of the row and the column softmax of `scale * similarity`: the probability
    with which image i picks text i, and text i image i. Computed in float32 or better.
    """
    own = scale * _at_least_float32(similarity.diagonal())
    return partner_confidence(own, _partition(similarity, scale), _partition(similarity.T, scale))


def partner_confidence(
    own: torch.Tensor, i2t_partition: torch.Tensor, t2i_partition: torch.Tensor
) -> torch.Tensor:
    """Return NCU's confidence that pairs are clean, from (N,) logits of the pairs and logsumexps.

    (exp(l_ii - logsumexp_j l_ij) + exp(l_ii - logsumexp_j l_ji)) / 2, with the logits l.
    """
    return ((own - i2t_partition).exp() + (own - t2i_partition).exp()) / 2


def forget_mask(confidence: torch.Tensor, percent: float) -> torch.Tensor:
    """Return NCU's forget set as (N,) bool: the floor(N percent / 100) least confident pairs.

    Of equal confidences, earlier positions are marked first. Raises `InputError` for a percentage
    outside [0, 100].
    """
    if not 0 <= percent <= 100:
        raise InputError(f"the forget percentage must lie in [0, 100], got {percent}")
    # Integer-exact for whole percentages: rounding, as in 0.29 * 100, must not cost a pair.
    count = int(len(confidence) * percent / 100 + 1e-9)
    mask = torch.zeros_like(confidence, dtype=torch.bool)
    mask[torch.argsort(confidence, stable=True)[:count]] = True
    return mask


def _partition(similarity: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """Return (N,) logsumexps of the scaled rows of (N, M) cosines, by blocks of rows."""
    rows = max(1, _BLOCK // max(1, similarity.shape[1]))
    return torch.cat(
        [(scale * _at_least_float32(part)).logsumexp(dim=1) for part in similarity.split(rows)]
    )


def _at_least_float32(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype == torch.float64 else values.float()
