"""Embeddings of all ranks, with gradients."""

from __future__ import annotations

import torch
from torch import distributed


def gather_with_gradients(tensor: torch.Tensor) -> torch.Tensor:
    """(B, ...) of this rank -> (world B, ...) of all ranks; gradients flow back to each rank."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return tensor
    from torch.distributed.nn.functional import all_gather

    return torch.cat(all_gather(tensor))
