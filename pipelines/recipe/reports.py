"""What stages report while they run, brought to one form for the terminal and for the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from ncclean.selection.export_shard import ShardReport
    from ncclean.training.trainer import StepReport

_LINE_EVERY_SECONDS = 10.0


class Reports(Protocol):
    """Hears how far a stage is."""

    def say(self, text: str) -> None:
        """Something begins, or is worth a line."""

    def advance(self, done: int, total: int, unit: str, facts: str = "") -> None:
        """`done` of `total` are done; a `total` of 0 is not known."""


class NoReports:
    """Tells nobody."""

    def say(self, text: str) -> None: ...
    def advance(self, done: int, total: int, unit: str, facts: str = "") -> None: ...


class Lines:
    """Lines with the time of day, for logs: progress every ten seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._last = clock()

    def say(self, text: str) -> None:
        self._stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        self._stream.flush()

    def advance(self, done: int, total: int, unit: str, facts: str = "") -> None:
        now = self._clock()
        if now - self._last < _LINE_EVERY_SECONDS and done != total:
            return
        self._last = now
        self.say(progress_line(done, total, unit, facts))


class Both:
    """The same reports to two listeners."""

    def __init__(self, first: Reports, second: Reports) -> None:
        self._first, self._second = first, second

    def say(self, text: str) -> None:
        self._first.say(text)
        self._second.say(text)

    def advance(self, done: int, total: int, unit: str, facts: str = "") -> None:
        self._first.advance(done, total, unit, facts)
        self._second.advance(done, total, unit, facts)


def progress_line(done: int, total: int, unit: str, facts: str = "") -> str:
    """`1,200 of 20,000 samples, loss 3.1`."""
    of = f" of {total:,}" if total else ""
    return f"{done:,}{of} {unit}" + (f", {facts}" if facts else "")


class ShardProgress:
    """The `Progress` of stages that go through shards."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._shards = self._done = self._total = 0

    def start(self, shards: int, samples: int) -> None:
        self._shards, self._total = shards, samples
        self._reports.say(f"{shards:,} shards, about {samples:,} samples")

    def samples(self, done: int) -> None:
        facts = f"{self._done:,} of {self._shards:,} shards"
        self._reports.advance(done, self._total, "samples", facts)

    def shard(self, name: str, rows: int, error: str | None) -> None:
        self._done += 1
        if error is not None:
            self._reports.say(f"shard {name} failed: {error}")

    def stage(self, text: str) -> None:
        self._reports.say(text)

    def finish(self) -> None: ...


class RowProgress:
    """The `StageProgress` of stages that go through rows."""

    def __init__(self, reports: Reports) -> None:
        self._reports, self._total = reports, 0

    def begin(self, text: str, total: int) -> None:
        self._total = total
        self._reports.say(text)

    def advance(self, done: int) -> None:
        self._reports.advance(done, self._total, "rows")

    def finish(self) -> None: ...


class WrittenShards:
    """Hears of the shards that an export has written."""

    def __init__(self, reports: Reports) -> None:
        self._reports, self._shards, self._samples = reports, 0, 0

    def __call__(self, report: ShardReport) -> None:
        self._shards += 1
        self._samples += report.samples
        self._reports.advance(self._shards, 0, "shards", f"{self._samples:,} samples")


def training_steps(reports: Reports) -> Callable[[StepReport], None]:
    """Reports of a trainer."""

    def tell(report: StepReport) -> None:
        terms = ", ".join(f"{name} {value:.3f}" for name, value in report.terms.items())
        speed = f"{report.samples_per_second:,.0f} samples/s"
        reports.advance(report.step, report.steps, "steps", f"{terms}, {speed}")

    return tell
