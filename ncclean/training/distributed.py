"""Embeddings of all ranks on every rank, with gradients.

Every rank computes the loss of the global batch, so the loss and its gradient are those of one
process that sees it all. How the factors come out right: `gather_with_gradients` sums, in its
backward pass, what all W ranks' losses say about this rank's embeddings, W times the gradient.
The mean of the parameters' gradients over ranks (`gradient_average`, or what
`DistributedDataParallel` does) takes that factor back and leaves the sum of what each rank
contributed. Parameters used after the gathering, such as the logit scale, have the whole gradient
on every rank, and its mean is itself. So nothing needs to be scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist


def gather_with_gradients(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gather (B, ...) tensors of W ranks -> (W B, ...) on each, in rank order, with gradients.

    All that have fractions travel as one, and so do all others (keys, marks). B, the names and the
    dtypes must be the same on every rank. With one process, or none set up, the tensors themselves.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return dict(tensors)
    whole: dict[str, torch.Tensor] = {}
    for floats in sorted({tensor.is_floating_point() for tensor in tensors.values()}):
        some = {name: one for name, one in tensors.items() if one.is_floating_point() == floats}
        # Joined, marks take the dtype of the keys: not every backend knows bool.
        ranks = _Gather.apply(torch.cat([tensor.flatten() for tensor in some.values()]))
        shares = ranks.split([tensor.numel() for tensor in some.values()], dim=1)
        for (name, tensor), share in zip(some.items(), shares, strict=True):
            whole[name] = share.reshape(-1, *tensor.shape[1:]).to(tensor.dtype)
    return whole


class _Gather(torch.autograd.Function):
    """(n,) of each of W ranks -> (W, n); backward, add up over ranks and keep the own row."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        shares = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, tensor)
        return torch.stack(shares)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        gradient = gradients[0].contiguous()
        if dist.get_backend() == dist.Backend.NCCL:
            own = torch.empty_like(gradient[0])
            dist.reduce_scatter_tensor(own, gradient)
            return own
        # Gloo and others do not scatter what they reduce.
        total = gradient.clone()
        dist.all_reduce(total)
        return total[dist.get_rank()]
