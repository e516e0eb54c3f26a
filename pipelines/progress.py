"""Observers of a command: a log, a callable, both, or a stage of a recipe."""

from __future__ import annotations

import contextlib
import html
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from ncclean.base.progress import SILENT, Pace, Progress, count_line
from ncclean.base.visible_text import message

__all__ = ["SILENT", "Progress"]

_LINE_EVERY_SECONDS, _DRAWN_EVERY_SECONDS = 10.0, 0.2


@dataclass(frozen=True)
class Report:
    """A report of progress for a function: `print` shows it as a line.

    `text` is the message; if it is empty, `done` of `total` units are done.
    """

    text: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text or count_line(self.done, self.total, self.unit, self.facts)


class Calls:
    """Progress that calls a function with a `Report` each time."""

    def __init__(self, function: Callable[[Report], object]) -> None:
        self._function = function

    def say(self, text: str) -> None:
        self._function(Report(text))

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        self._function(Report("", done, total, unit, facts))


class Lines:
    """Progress as lines for logs: messages and, every ten seconds, speed and remaining time."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        *,
        with_time: bool = False,
    ) -> None:
        """Set up the log; `with_time` begins each line with date and time."""
        self._stream, self._clock, self._with_time = stream, clock, with_time
        self._pace, self._last = Pace(clock), clock()

    def say(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S ") if self._with_time else ""
        self._stream.write(f"{stamp}{message(text)}\n")
        self._stream.flush()

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        pace = self._pace.facts(done, total, unit)
        if self._clock() - self._last >= _LINE_EVERY_SECONDS:
            self._last = self._clock()
            self.say(count_line(done, total, unit, {**pace, **facts}))


@contextlib.contextmanager
def default_progress() -> Iterator[Progress]:
    """Yield the progress of a function that was given none: a bar in a notebook, else silence."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        yield SILENT
        return
    bar = NotebookBar()
    try:
        yield bar
    finally:
        bar.close()


class NotebookBar:
    """Progress as a bar and the last message, in the output of a notebook's cell."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._handle: Any = None
        self._clock, self._pace, self._last = clock, Pace(clock), -math.inf
        self._said = ""

    def say(self, text: str) -> None:
        self._said = message(text)
        self._draw(self._said, "")

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        pace = self._pace.facts(done, total, unit)
        if self._clock() - self._last >= _DRAWN_EVERY_SECONDS or done == total:
            self._last = self._clock()
            line = message(count_line(done, total, unit, {**pace, **facts}))
            self._draw(line, f"<progress value='{done}' max='{total or 1}'></progress> ")

    def close(self) -> None:
        """Show the last message without a bar."""
        self._draw(self._said, "")

    def _draw(self, text: str, bar: str) -> None:
        from IPython.display import display

        page = {"text/plain": text, "text/html": f"{bar}<small>{html.escape(text)}</small>"}
        if self._handle is not None:
            self._handle.update(page, raw=True)
        elif text:
            self._handle = display(page, raw=True, display_id=True)


class Both:
    """Progress that passes each report to two receivers."""

    def __init__(self, first: Progress, second: Progress) -> None:
        self._receivers = first, second

    def say(self, text: str) -> None:
        for receiver in self._receivers:
            receiver.say(text)

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        for receiver in self._receivers:
            receiver.advance(done, total, unit, **facts)


class OfStage:
    """Progress that names the stage of a recipe in every report."""

    def __init__(self, receiver: Progress, name: str) -> None:
        self._receiver, self._name = receiver, name

    def say(self, text: str) -> None:
        self._receiver.say(f"{self._name}: {text}")

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        self._receiver.advance(done, total, unit, stage=self._name, **facts)
