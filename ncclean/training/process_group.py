"""The processes of a training run, started by torchrun or Ray Train, and their exchanges.

Every rank computes the loss of the global batch, so the loss and its gradient equal a single
process's. The factors are as follows: `gather_with_gradients` sums, in its backward pass, what all
W ranks' losses say about this rank's embeddings, W times the gradient. `average_gradients` removes
that factor and leaves the sum of the ranks' contributions. Parameters used after the gathering,
such as the logit scale, have the whole gradient on every rank, and its mean is itself. So nothing
needs to be scaled.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import distributed, nn

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The number of this process, from 0, among the `size` processes of a training run."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def rank_device(device: str) -> str:
    """Return the GPU of this rank, unless `device` names one."""
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return f"cuda:{local % torch.cuda.device_count()}"


@contextlib.contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the environment's process group (`WORLD_SIZE`) for the length of the context."""
    if distributed.is_available() and distributed.is_initialized():
        yield Ranks(distributed.get_rank(), distributed.get_world_size())
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()


def average_over(ranks: Ranks, values: torch.Tensor) -> torch.Tensor:
    """Return the mean of a detached tensor over all ranks."""
    if ranks.size == 1:
        return values
    mean = values.detach().clone()
    distributed.all_reduce(mean)
    return mean / ranks.size


def wait_for_all(ranks: Ranks) -> None:
    """Block until every rank has called this."""
    if ranks.size > 1:
        distributed.barrier()


def said_by_first(ranks: Ranks, value: T) -> T:
    """Return the value of the first rank on all ranks."""
    values = [value]
    if ranks.size > 1:
        distributed.broadcast_object_list(values, src=0)
    return values[0]


def gathered(ranks: Ranks, value: T) -> list[T]:
    """Return the values of all ranks in a list, on all ranks."""
    values: list[Any] = [value]
    if ranks.size > 1:
        values *= ranks.size
        distributed.all_gather_object(values, value)
    return values


def check_same_start(model: nn.Module, ranks: Ranks) -> None:
    """Copy the first rank's weights and buffers to all ranks."""
    if ranks.size == 1:
        return
    for tensor in [*model.parameters(), *model.buffers()]:
        distributed.broadcast(tensor.data, src=0)


def gather_with_gradients(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gather (B, ...) tensors of W ranks to (W B, ...) on each, in rank order, with gradients.

    All floating-point tensors are exchanged as one, as are all others (keys, marks). B, the names
    and the dtypes must be the same on every rank. With one process, or no group, returns the
    tensors themselves.
    """
    if (
        not (distributed.is_available() and distributed.is_initialized())
        or distributed.get_world_size() == 1
    ):
        return dict(tensors)
    whole: dict[str, torch.Tensor] = {}
    for floats in sorted({tensor.is_floating_point() for tensor in tensors.values()}):
        alike = {
            name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() == floats
        }
        # When joined, marks take the dtype of the keys: not every backend supports bool.
        ranks = _Gather.apply(torch.cat([tensor.flatten() for tensor in alike.values()]))
        shares = ranks.split([tensor.numel() for tensor in alike.values()], dim=1)
        for (name, tensor), share in zip(alike.items(), shares, strict=True):
            whole[name] = share.reshape(-1, *tensor.shape[1:]).to(tensor.dtype)
    return whole


class _Gather(torch.autograd.Function):
    """Gathers (n,) of each of W ranks to (W, n); backward sums over ranks and keeps the own row."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        shares = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
        distributed.all_gather(shares, tensor)
        return torch.stack(shares)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        gradient = gradients[0].contiguous()
        if distributed.get_backend() == distributed.Backend.NCCL:
            of_rank = torch.empty_like(gradient[0])
            distributed.reduce_scatter_tensor(of_rank, gradient)
            return of_rank
        # Gloo and others cannot scatter a reduction.
        total = gradient.clone()
        distributed.all_reduce(total)
        return total[distributed.get_rank()]


def average_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Replace the gradient of each parameter by its mean over the ranks.

    Call it after the last backward pass of a step, with parameters in the same order on every rank.
    DistributedDataParallel does not fit: if a batch is encoded in pieces, the logit scale gets its
    gradient in an earlier pass than the towers, and counts as an unused parameter.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if ranks.size == 1 or not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])  # one exchange for all
    distributed.all_reduce(flat)
    flat /= ranks.size
    means = flat.split([gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))
