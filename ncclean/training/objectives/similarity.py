"""Norms and products of embeddings that no autocast rounds.

A logit is a cosine times up to 100: rounded to bfloat16 it is off by a third and more. The losses
are a small part of a step, so they always take norms and products in float32 or better.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def normalized(features: torch.Tensor) -> torch.Tensor:
    """L2-normalise (N, d) features of a tower, in float32 or better."""
    precise = features.to(torch.promote_types(features.dtype, torch.float32))
    with torch.autocast(features.device.type, enabled=False):
        return F.normalize(precise, dim=-1)


def cosines(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """(N, d) and (M, d) L2-normalised embeddings -> (N, M) cosines, in float32 or better."""
    first, second = precise(first, second)
    with torch.autocast(first.device.type, enabled=False):
        return first @ second.T


def paired_cosines(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """(N, d) and (N, d) L2-normalised embeddings -> (N,) cosines of the pairs."""
    first, second = precise(first, second)
    return (first * second).sum(dim=1)


def precise(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast two tensors to one precision, float32 or better."""
    dtype = torch.promote_types(torch.promote_types(first.dtype, second.dtype), torch.float32)
    return first.to(dtype), second.to(dtype)
