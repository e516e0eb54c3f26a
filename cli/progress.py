"""Progress of a run: a bar on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from ncclean.training.trainer import StepReport

_LINE_EVERY_SECONDS = 10.0


class LineProgress:
    """Plain lines with samples/s and ETA, for logs and batch jobs."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._begin = self._last = time.monotonic()
        self._shards = self._shards_done = self._failed = 0
        self._expected = 0

    def start(self, shards: int, samples: int) -> None:
        self._begin = self._last = time.monotonic()
        self._shards, self._expected = shards, samples
        if shards:
            self._say(f"{shards} shards to {self._verb}, about {samples:,} samples")
        else:
            self._say(f"nothing left to {self._verb}: all shards are done")

    def samples(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last < _LINE_EVERY_SECONDS:
            return
        self._last = now
        speed = done / (now - self._begin)
        eta = _duration((self._expected - done) / speed) if 0 < done < self._expected else "-"
        self._say(
            f"{done:,} samples, {self._shards_done}/{self._shards} shards, "
            f"{speed:,.0f} samples/s, ETA {eta}"
            + (f", {self._failed} shards failed" if self._failed else "")
        )

    def shard(self, name: str, rows: int, error: str | None) -> None:
        self._shards_done += 1
        if error is not None:
            self._failed += 1
            self._say(f"shard {name} failed: {error}")

    def stage(self, text: str) -> None:
        self._say(text)

    def finish(self) -> None:
        pass

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class BarProgress:
    """One bar with shards, samples/s and ETA."""

    def __init__(self, verb: str = "score") -> None:
        self._verb = verb
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} samples"),
            TextColumn("{task.fields[speed]:,.0f}/s"),
            TextColumn("{task.fields[shards]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._begin = time.monotonic()
        self._shards = self._shards_done = 0

    def start(self, shards: int, samples: int) -> None:
        self._begin, self._shards = time.monotonic(), shards
        self._bar.start()
        self._task = self._bar.add_task(
            self._verb, total=samples or None, speed=0.0, shards=f"0/{shards} shards"
        )

    def samples(self, done: int) -> None:
        if self._task is not None:
            speed = done / max(time.monotonic() - self._begin, 1e-9)
            self._bar.update(self._task, completed=done, speed=speed)

    def shard(self, name: str, rows: int, error: str | None) -> None:
        self._shards_done += 1
        if self._task is not None:
            self._bar.update(self._task, shards=f"{self._shards_done}/{self._shards} shards")
        if error is not None:
            self._console.print(f"shard {name} failed: {error}", style="red", highlight=False)

    def stage(self, text: str) -> None:
        if self._task is not None:
            self._bar.update(self._task, description=text)
        else:
            self._console.print(text, style="dim", highlight=False)

    def finish(self) -> None:
        self._bar.stop()


class NoProgress:
    """Nothing at all (`--quiet`)."""

    def start(self, shards: int, samples: int) -> None: ...
    def samples(self, done: int) -> None: ...
    def shard(self, name: str, rows: int, error: str | None) -> None: ...
    def stage(self, text: str) -> None: ...
    def finish(self) -> None: ...


class ShardProgress:
    """Shards that are written: samples and bytes so far and per second."""

    def __init__(self, doing: str, quiet: bool) -> None:
        self._doing, self._quiet = doing, quiet
        self._is_terminal = sys.stderr.isatty()
        self._console = Console(stderr=True)
        self._begin = self._last = time.monotonic()
        self._shards = self._samples = self._bytes = 0
        self._status = self._console.status(doing) if self._is_terminal and not quiet else None

    def __enter__(self) -> ShardProgress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()

    def done(self, samples: int, size: int) -> None:
        """One more shard is written."""
        self._shards += 1
        self._samples += samples
        self._bytes += size
        now = time.monotonic()
        text = (
            f"{self._doing}: {self._shards:,} shards, {self._samples:,} samples, "
            f"{self._samples / (now - self._begin):,.0f} samples/s, "
            f"{self._bytes / 1e6 / (now - self._begin):,.0f} MB/s"
        )
        if self._status is not None:
            self._status.update(text)
        elif not self._quiet and now - self._last >= _LINE_EVERY_SECONDS:
            self._last = now
            print(text, file=sys.stderr, flush=True)


class StepProgress:
    """Steps of a training run with loss, samples/s and ETA."""

    def __init__(self, doing: str, steps: int, batch_size: int, quiet: bool) -> None:
        self._doing, self._steps, self._batch_size = doing, steps, batch_size
        self._quiet = quiet
        self._begin = self._last = time.monotonic()
        self._bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total} steps"),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(doing, total=steps, facts="")

    def __enter__(self) -> StepProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def done(self, step: int, loss: float) -> None:
        """A step is done."""
        now = time.monotonic()
        speed = step * self._batch_size / max(now - self._begin, 1e-9)
        self.show(step, f"loss {loss:.3f}, {speed:,.0f} samples/s")

    def show(self, step: int, facts: str) -> None:
        """Say where the run stands."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=step, facts=facts)
        elif not self._quiet and now - self._last >= _LINE_EVERY_SECONDS:
            self._last = now
            eta = _duration((self._steps - step) * (now - self._begin) / step)
            line = f"{self._doing}: step {step}/{self._steps}, {facts}, ETA {eta}"
            print(line, file=sys.stderr, flush=True)


class TrainingProgress:
    """Steps of a training run, whose number is known once it has begun."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet or os.environ.get("RANK", "0") != "0"
        self._inner: StepProgress | None = None

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._inner is not None:
            self._inner.__exit__()

    def step(self, report: StepReport) -> None:
        """A step is done."""
        if self._inner is None:
            self._inner = StepProgress("training", report.steps, 0, self._quiet)
            self._inner.__enter__()
        terms = ", ".join(f"{name} {value:.3f}" for name, value in report.terms.items())
        self._inner.show(report.step, f"{terms}, {report.samples_per_second:,.0f} samples/s")


def make_progress(quiet: bool, verb: str = "score") -> LineProgress | BarProgress | NoProgress:
    """`verb` is what the run does with the shards."""
    if quiet:
        return NoProgress()
    return BarProgress(verb) if sys.stderr.isatty() else LineProgress(verb)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
