"""What the engines that score in one process have in common."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from ncclean.storage.finalize import Calibration, finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.manifest import Manifest


class InProcessEngine:
    """The part of an `Engine` that does not depend on what it scores."""

    def finalize(self, layout: ScoreLayout, manifest: Manifest, calibration: Calibration) -> None:
        """Write the final table in this process."""
        finalize(layout, manifest, calibration)

    def close(self) -> None:
        """There is nothing to release."""


class OneBehind:
    """Context manager that makes calls in a thread while the caller goes on, one at a time.

    The next call waits for the one before, so that memory and a crash's loss stay small. Raises
    what a call raised, at the next one or at the end.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "ncclean-finish")
        self._last: Future[None] | None = None

    def __enter__(self) -> OneBehind:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            self._pool.shutdown()

    def submit(self, call: Callable[[], None]) -> None:
        """Make a call once the last one has ended."""
        self._wait()
        self._last = self._pool.submit(call)

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()
            self._last = None
