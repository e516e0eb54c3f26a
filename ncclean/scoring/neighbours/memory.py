"""Memory that is used again: having the system give and clear it takes longer than filling it."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

_held = threading.local()


def kept(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of any content in the memory of this thread's last one of that name.

    What the last one held is gone, so a name is for one use at a time.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = getattr(_held, name, None)
    if memory is None or len(memory) < size:
        memory = np.empty(size, np.uint8)
        setattr(_held, name, memory)
    return memory[:size].view(dtype).reshape(shape)


def release() -> None:
    """Give the memory of this thread back."""
    vars(_held).clear()
