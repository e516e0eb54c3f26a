"""The processes of a training run, as torchrun or Ray Train start them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import distributed, nn

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among `size`."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def rank_device(device: str) -> str:
    """The GPU of this rank, unless `device` names one."""
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return f"cuda:{local % torch.cuda.device_count()}"


@contextlib.contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the process group of the environment (`WORLD_SIZE`) for the length of the context."""
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
    """Mean of a detached tensor over all ranks."""
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
    """The value that the first rank has, on all ranks."""
    values = [value]
    if ranks.size > 1:
        distributed.broadcast_object_list(values, src=0)
    return values[0]


def gathered(ranks: Ranks, value: T) -> list[T]:
    """The values of all ranks, on all ranks."""
    values: list[Any] = [value]
    if ranks.size > 1:
        values *= ranks.size
        distributed.all_gather_object(values, value)
    return values


def check_same_start(model: nn.Module, ranks: Ranks) -> None:
    """Copy weights and buffers of the first rank to all ranks."""
    if ranks.size == 1:
        return
    for tensor in [*model.parameters(), *model.buffers()]:
        distributed.broadcast(tensor.data, src=0)
