"""Share memory between processes: blocks of images, written in one and read in another."""

from __future__ import annotations

import mmap
import os

import torch

from ncclean.workers.memory import shared_memory


class Arena:
    """`blocks` blocks of (images, 3, height, width) uint8, as tensors on the same memory.

    It is not a file in `/dev/shm`, which containers keep small. A block takes memory once used.
    """

    def __init__(
        self, blocks: int, shape: tuple[int, int, int, int], descriptor: int | None = None
    ) -> None:
        """Allocate memory, or map that of another process with a `descriptor`."""
        images = shape[0] * shape[1] * shape[2] * shape[3]
        if descriptor is None:
            descriptor = shared_memory(blocks * images)
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, blocks * images)
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self.blocks = whole.view(blocks, *shape)

    def close(self) -> None:
        """Close the descriptor; the memory is freed with the last tensor on it."""
        os.close(self.descriptor)
