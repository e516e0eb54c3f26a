"""The processes of a training run, as torchrun or Ray Train start them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import distributed, nn


@dataclass(frozen=True)
class Ranks:
    """This process among `size`."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def rank_device(device: str) -> str:
    """The GPU of this process among those of its machine, where `device` leaves the choice."""
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return f"cuda:{local % torch.cuda.device_count()}"


@contextlib.contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the process group that the environment names (`WORLD_SIZE`), if there is one."""
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


def average_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Replace each gradient by its mean over the ranks, in one exchange per dtype.

    The dtypes come in the order of the parameters, which is the same on every rank.

    With embeddings gathered with gradients each rank holds the gradient of the global loss times
    the number of ranks, of its own share of the embeddings: the mean is the gradient.
    """
    if ranks.size == 1:
        return
    held = [p.grad for p in parameters if p.grad is not None]
    for dtype in dict.fromkeys(gradient.dtype for gradient in held):
        same = [gradient for gradient in held if gradient.dtype == dtype]
        flat = torch.cat([gradient.flatten() for gradient in same])
        distributed.all_reduce(flat)
        flat /= ranks.size
        for gradient, mean in zip(same, flat.split([g.numel() for g in same]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def average_over(ranks: Ranks, values: torch.Tensor) -> torch.Tensor:
    """The mean over ranks of a detached tensor."""
    if ranks.size == 1:
        return values
    mean = values.detach().clone()
    distributed.all_reduce(mean)
    return mean / ranks.size


def wait_for_all(ranks: Ranks) -> None:
    """Return once every rank has called this."""
    if ranks.size > 1:
        distributed.barrier()


def check_same_start(model: nn.Module, ranks: Ranks) -> None:
    """Give all ranks the first one's weights and buffers."""
    if ranks.size == 1:
        return
    for tensor in [*model.parameters(), *model.buffers()]:
        distributed.broadcast(tensor.data, src=0)
