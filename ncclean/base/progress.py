"""The protocol of progress, which the library reports to observers; speed and timing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from ncclean.base.formats import clock_time


@runtime_checkable
class Progress(Protocol):
    """Receives the current activity and its progress."""

    def say(self, text: str) -> None:
        """Report that something begins, or another line of text."""

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        """Report that `done` of `total` units are done; 0 stands for an unknown total."""


class Silent:
    """Reports nothing."""

    def say(self, text: str) -> None: ...
    def advance(self, done: int, total: int, unit: str, **facts: object) -> None: ...


SILENT = Silent()


class Pace:
    """Speed and time left, from the first report on: earlier work was resumed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counted: tuple[int, str] | None = None
        self._first, self._last, self._begin = 0, 0, 0.0

    def facts(self, done: int, total: int, unit: str) -> dict[str, str]:
        """Speed and remaining time as text; empty in the first report and before any progress."""
        now = self._clock()
        if self._counted != (total, unit) or done < self._last:  # something else, or once more
            self._counted, self._first, self._begin = (total, unit), done, now
        self._last = done
        units, seconds = done - self._first, now - self._begin
        if units <= 0 or seconds <= 0:
            return {}
        speed = units / seconds
        facts = {"speed": f"{speed:,.0f} {unit}/s" if speed >= 1 else f"{1 / speed:,.1f} s each"}
        if total > done:
            facts["ETA"] = clock_time((total - done) / speed)
        return facts


@contextlib.contextmanager
def timed(times: dict[str, float], phase: str) -> Iterator[None]:
    """Add the seconds that the context takes to those of a phase."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        times[phase] = times.get(phase, 0.0) + time.perf_counter() - begun


def count_line(done: int, total: int, unit: str, facts: Mapping[str, object]) -> str:
    """A line of progress: `score: 1,200 of 20,000 samples, loss 3.1`."""
    of = f" of {total:,}" if total else ""
    others = (fact for fact in facts.items() if fact[0] != "stage")
    line = ", ".join([f"{done:,}{of} {unit}", *map(fact_text, others)])
    return f"{facts['stage']}: {line}" if "stage" in facts else line


def fact_text(fact: tuple[str, object]) -> str:
    """Return a fact about progress as text: `loss 3.1`; a speed is printed without its name."""
    name, value = fact
    text = f"{value:.3f}" if isinstance(value, float) else f"{value}"
    return text if name == "speed" else f"{name.replace('_', ' ')} {text}"
