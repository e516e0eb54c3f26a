"""Memory that is used again: having the system give and clear it takes longer than filling it."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

# Bytes of a cache line: matrix tiles are slow to load from two.
_ALIGNED = 64
_held = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array in a buffer of this name, which the thread's next call reuses.

    What the last one held is gone, so a name is for one use at a time.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = getattr(_held, name, None)
    if memory is None or len(memory) < size:
        # Twice the size, as the next one may be larger; what is not written to takes no memory.
        memory = np.empty(2 * size + _ALIGNED, np.uint8)
        memory = memory[-memory.ctypes.data % _ALIGNED :][: 2 * size]
        setattr(_held, name, memory)
    array: np.ndarray = memory[:size].view(dtype).reshape(shape)
    return array


def release() -> None:
    """Free the buffers of this thread."""
    vars(_held).clear()
