"""Memory that processes share."""

from __future__ import annotations

import os
import tempfile


def shared_memory(size: int) -> int:
    """Return a descriptor of `size` bytes that processes may share, not a file in `/dev/shm`."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ncclean")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
