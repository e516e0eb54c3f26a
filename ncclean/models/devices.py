"""Spreads an estimator's towers over the cores of a processor, or feeds them on a GPU."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

T = TypeVar("T")


class Cores:
    """One thread for each core that torch may use; each runs its own operations."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._own = threading.local()
        self.count = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self.count, "ncclean-encode", torch.set_num_threads, (1,))

    def map(
        self, encode: Callable[[T], torch.Tensor], pieces: Iterable[T]
    ) -> Iterator[torch.Tensor]:
        """Call `encode` on every piece, one core each; results are in the order of the pieces."""
        return self._pool.map(encode, pieces)

    @property
    def model(self) -> nn.Module:
        """A copy of the model for the calling thread, sharing its tensors.

        Shortening the context swaps tensors inside the modules, which threads must not share.
        """
        if not hasattr(self._own, "model"):
            self._own.model = sharing_tensors(self._model)
        own: nn.Module = self._own.model
        return own


def sharing_tensors(model: nn.Module) -> nn.Module:
    """A copy of the modules of a model with the same parameters and buffers."""
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


class Uploads:
    """Uploads batches to a GPU on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def encode(
        self, blocks: Sequence[torch.Tensor], encode: Callable[[torch.Tensor], torch.Tensor]
    ) -> Callable[[], torch.Tensor]:
        """Queue upload and encoding of a batch; the returned function waits for the result.

        Blocks in pinned memory are uploaded from there: leave them be until then.
        """
        with torch.cuda.device(self._device):
            with torch.cuda.stream(self._stream):
                uploaded = torch.cat([self._upload(block) for block in blocks])
            compute = torch.cuda.current_stream(self._device)
            compute.wait_stream(self._stream)
            uploaded.record_stream(compute)
            encoded = encode(uploaded)
            done = torch.cuda.Event()
            done.record(compute)

        def result() -> torch.Tensor:
            done.synchronize()
            return encoded

        return result

    def _upload(self, block: torch.Tensor) -> torch.Tensor:
        # torch keeps pinned memory and hands it out again once its upload is through: with two
        # batches in flight this is double buffering.
        if block.device.type == "cpu" and not block.is_pinned():
            block = block.pin_memory()
        return block.to(self._device, non_blocking=True)
