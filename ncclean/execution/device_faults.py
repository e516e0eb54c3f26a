"""Recognise errors of a device, and adapt to insufficient memory."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DEVICE = re.compile(
    r"\b(CUDA|HIP|MPS|cuDNN|CUDNN|cuBLAS|CUBLAS|NCCL)\b.*(error|fail|STATUS)", re.I
)


def is_device_error(error: BaseException) -> bool:
    """Check whether an error is the device's (CUDA, its libraries or memory), not the pairs'."""
    kinds: tuple[type[Exception], ...] = (torch.OutOfMemoryError,)
    if hasattr(torch, "AcceleratorError"):  # since torch 2.8
        kinds += (torch.AcceleratorError,)
    return isinstance(error, kinds) or (
        isinstance(error, RuntimeError) and _DEVICE.search(str(error)) is not None
    )


class BatchSize:
    """A batch size that is halved for the rest of the run when the device runs out of memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._halving = threading.Lock()

    def fit(self, work: Callable[[int], T], first: Callable[[], T] | None = None) -> T:
        """Call `work` with the batch size, and with half of it whenever memory runs out.

        `first` is the first attempt, if it has already begun. Raises `torch.OutOfMemoryError` if a
        batch of one is too large.
        """
        while True:
            size = self.size
            try:
                return work(size) if first is None else first()
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
            first = None
            self._halve(size)

    def _halve(self, size: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        with self._halving:
            if self.size == size:  # unless another thread has done so
                self.size = size // 2
                logger.warning(
                    "out of memory at --batch-size %d; going on with %d", size, self.size
                )


# Parameters of mallopt(3). The second may not exceed 32 MiB.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BYTES = 256 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Make glibc keep up to 256 MiB of freed memory for the next batch; elsewhere do nothing.

    Otherwise blocks of some hundred kilobytes, such as batches and activations, are repeatedly
    allocated and freed, and the system clears each page it gives: a tenth of `score`'s processor
    time with a small model. Settings in the environment (`MALLOC_...`) take precedence.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
