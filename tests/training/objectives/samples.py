"""Embeddings to try objectives on."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def embeddings(
    count: int, *, pairs: int = 6, dim: int = 4, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """`count` times (pairs, dim) L2-normalised, with gradients."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, pairs, dim, generator=generator, dtype=torch.float64)
    return tuple(each.to(dtype).requires_grad_() for each in F.normalize(drawn, dim=-1))


def extremes(count: int, pairs: int = 4) -> tuple[torch.Tensor, ...]:
    """Embeddings with all cosines +1 or -1."""
    line = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).repeat(pairs // 2, 1)
    return tuple((line * (-1) ** index).clone().requires_grad_() for index in range(count))


def invariant_cosines(parts):
    """(N, N) cosines of V_S and T_S."""
    image, text = (F.normalize(parts[f"{side}_invariant"], dim=-1) for side in ("image", "text"))
    return image @ text.T
