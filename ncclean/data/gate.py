"""Limit what several threads hold at a time, in pixels or bytes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ncclean.base.options import MAX_PIXELS, usable_cores

_PIXELS_PER_CORE = 4_000_000  # of a photograph


class Gate:
    """Limits the sum of amounts that threads hold at once to `most`.

    A single larger amount is admitted alone.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._changed = threading.Condition()

    def enter(self, size: int) -> None:
        """Wait until the limit leaves room for this amount, and reserve it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held or self._held + size <= self._most)
            self._held += size

    def leave(self, size: int) -> None:
        """Release a reserved amount for others to use."""
        with self._changed:
            self._held -= size
            self._changed.notify_all()

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Reserve an amount for the length of a `with` block."""
        self.enter(size)
        try:
            yield
        finally:
            self.leave(size)


class PixelGate(Gate):
    """Limits the pixels that are decoded at once: to the largest image, or a few for each core.

    A decoder takes about eight bytes for each pixel: one image of the largest kind at a time is
    enough.
    """

    def __init__(self) -> None:
        super().__init__(max(MAX_PIXELS, _PIXELS_PER_CORE * usable_cores()))
