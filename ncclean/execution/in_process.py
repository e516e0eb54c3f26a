"""What the engines that score in one process have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from ncclean.storage.calibration import Calibration
from ncclean.storage.finalize import finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.manifest import Manifest


class InProcessEngine:
    """The part of an `Engine` that does not depend on what it scores."""

    def finalize(self, layout: ScoreLayout, manifest: Manifest, calibration: Calibration) -> None:
        """Write the final table in this process."""
        finalize(layout, manifest, calibration)

    def close(self) -> None:
        """There is nothing to release."""


@contextmanager
def one_behind() -> Iterator[Callable[[Callable[[], None]], None]]:
    """A function that makes calls in a thread while the caller goes on, one at a time.

    The next call waits for the one before, so that memory and a crash's loss stay small. What a
    call raised is raised at the next one, or at the end.
    """
    last: Future[None] | None = None

    def submit(call: Callable[[], None]) -> None:
        nonlocal last
        if last is not None:
            last.result()
        last = pool.submit(call)

    with ThreadPoolExecutor(1, "ncclean-finish") as pool:
        yield submit
        if last is not None:
            last.result()
