"""Spreads an estimator's towers over the cores of a processor, or feeds them on a GPU."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A GPU's batches that are tried, and the share of the highest speed that a smaller one must reach.
_BATCHES = (64, 128, 256, 512, 1024, 2048)
_AS_GOOD = 0.95
_BUSY_SECONDS = 0.25  # a batch that takes so long waits for no launches: larger ones gain nothing
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all GPUs


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


def fastest_batch(seconds: Callable[[int], float]) -> int:
    """The smallest size of batches, a power of two, within a twentieth of the highest speed.

    `seconds` measures one batch of so many, and raises `torch.OutOfMemoryError` if it is too large.
    """
    rates: dict[int, float] = {}
    with contextlib.suppress(torch.OutOfMemoryError):
        for size in _BATCHES:
            taken = seconds(size)
            rates[size] = size / taken
            if taken > _BUSY_SECONDS:
                break
    fast = _AS_GOOD * max(rates.values(), default=0.0)
    return next((size for size, rate in rates.items() if rate >= fast), _BATCHES[0])


def pin(memory: torch.Tensor) -> bool:
    """Have CUDA lock the memory of a CPU tensor, from where batches are then uploaded uncopied.

    It may be shared with other processes, which write the batches. Returns whether it is locked:
    not without a GPU, nor where the system refuses. `unpin` it before it is freed.
    """
    if not torch.cuda.is_available():
        return False
    status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)
    if int(status) == 0:
        return True
    logger.info("batches are copied before their upload: cudaHostRegister gave %s", status)
    with contextlib.suppress(RuntimeError):  # CUDA says it again at the next launch
        torch.zeros(1, device="cuda")
    return False


def unpin(memory: torch.Tensor) -> None:
    """Undo `pin`, where it returned True."""
    torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())))


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
            compute = torch.cuda.current_stream(self._device)
            if any(block.device.type != "cpu" for block in blocks):  # decoded there
                self._stream.wait_stream(compute)
            with torch.cuda.stream(self._stream):
                uploaded = torch.cat([self._upload(block) for block in blocks])
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
