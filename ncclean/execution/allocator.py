"""Settings of the memory allocator for batches that come and go."""

from __future__ import annotations

import ctypes
import os
import sys

# Parameters of mallopt(3). Larger mappings than 32 MiB are not allowed for the second.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BYTES = 256 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Have glibc keep up to 256 MiB of freed memory for the next batch; elsewhere do nothing.

    Else blocks of some hundred kilobytes, as batches and activations take, are asked for and given
    back again and again, and the system clears each page that it gives: a tenth of the processor
    time of `score` with a small model. What the environment says (`MALLOC_...`) stays.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
