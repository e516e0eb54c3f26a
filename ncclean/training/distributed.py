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

from typing import Any

import torch
import torch.distributed as dist


def gather_with_gradients(tensor: torch.Tensor) -> torch.Tensor:
    """Gather (B, ...) tensors of W ranks -> (W B, ...) on each, in rank order, with gradients.

    B and the dtype must be the same on every rank. Tensors without gradients (weights, forget
    marks, of any dtype) are gathered too. With one process, or none set up, the tensor itself.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return tensor
    if tensor.dtype == torch.bool:  # which not every backend knows
        return gather_with_gradients(tensor.to(torch.uint8)).bool()
    gathered: torch.Tensor = _Gather.apply(tensor)
    return gathered


class _Gather(torch.autograd.Function):
    """Concatenate over ranks; backward, add up over ranks and keep the own rows."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        shares = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, tensor.contiguous())
        return torch.cat(shares)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        gradient = gradients[0].contiguous()
        rows = len(gradient) // dist.get_world_size()
        if dist.get_backend() == dist.Backend.NCCL:
            own = torch.empty_like(gradient[:rows])
            dist.reduce_scatter_tensor(own, gradient)
            return own
        # Gloo and others do not scatter what they reduce.
        total = gradient.clone()
        dist.all_reduce(total)
        start = rows * dist.get_rank()
        return total[start : start + rows]
