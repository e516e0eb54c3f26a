"""Progress of a run that goes through stages: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_LINE_EVERY_SECONDS = 10.0


class StageLines:
    """A line for each stage, and within long ones a line with rows/s and ETA now and then."""

    def __init__(self) -> None:
        self._text, self._total = "", 0
        self._begin = self._last = time.monotonic()

    def begin(self, text: str, total: int) -> None:
        self._text, self._total = text, total
        self._begin = self._last = time.monotonic()
        _say(f"{text}, {total:,} rows" if total else text)

    def advance(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last < _LINE_EVERY_SECONDS:
            return
        self._last = now
        speed = done / (now - self._begin)
        left = max(self._total - done, 0) / speed
        _say(
            f"{self._text}: {done:,} of {self._total:,}, {speed:,.0f} rows/s, "
            f"ETA {round(left) // 60}:{round(left) % 60:02d}"
        )

    def finish(self) -> None:
        pass


class StageBar:
    """One bar that starts again with each stage."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None
        self._began = time.monotonic()

    def begin(self, text: str, total: int) -> None:
        if self._task is None:
            self._bar.start()
        else:
            self._bar.remove_task(self._task)
        self._began = time.monotonic()
        self._task = self._bar.add_task(text, total=total or None, speed="")

    def advance(self, done: int) -> None:
        if self._task is not None:
            speed = done / max(time.monotonic() - self._began, 1e-9)
            self._bar.update(self._task, completed=done, speed=f"{speed:,.0f} rows/s")

    def finish(self) -> None:
        self._bar.stop()


class NoStages:
    """Nothing at all (`--quiet`)."""

    def begin(self, text: str, total: int) -> None: ...
    def advance(self, done: int) -> None: ...
    def finish(self) -> None: ...


def make_stage_progress(quiet: bool) -> StageLines | StageBar | NoStages:
    if quiet:
        return NoStages()
    return StageBar() if sys.stderr.isatty() else StageLines()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
