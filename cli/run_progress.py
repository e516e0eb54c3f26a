"""Progress of a recipe: a bar for each stage on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from ncclean_pipelines.recipe.folder import StageRecord
    from ncclean_pipelines.recipe.load import Stage

_LINE_EVERY_SECONDS = 10.0


class RunLines:
    """A line where something begins or ends, and within long stages one now and then."""

    def __enter__(self) -> RunLines:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def begin(self, stage: Stage, number: int, of: int, reason: str) -> RunLines:
        self._name, self._last = stage.name, time.monotonic()
        self._print(f"stage {number} of {of}, {stage.name} ({stage.command.name}): {reason}")
        return self

    def say(self, text: str) -> None:
        self._print(f"{self._name}: {text}")

    def advance(self, done: int, total: int, unit: str, facts: str = "") -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_EVERY_SECONDS:
            self._last = now
            of = f" of {total:,}" if total else ""
            self._print(f"{self._name}: {done:,}{of} {unit}" + (f", {facts}" if facts else ""))

    def end(self, record: StageRecord) -> None:
        figures = ", ".join(f"{name} {value}" for name, value in record.figures.items())
        self._print(f"{record.stage}: done in {record.seconds:,.1f} s; {figures}")

    def skip(self, stage: Stage) -> None:
        self._print(f"{stage.name}: unchanged, skipped")

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class RunBar(RunLines):
    """The same lines, above one bar that starts again with each stage."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> RunBar:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def begin(self, stage: Stage, number: int, of: int, reason: str) -> RunLines:
        super().begin(stage, number, of, reason)
        self._task = self._bar.add_task(stage.name, total=None, facts="")
        return self

    def say(self, text: str) -> None:
        if self._task is not None:
            self._bar.reset(self._task, total=None, facts=text)

    def advance(self, done: int, total: int, unit: str, facts: str = "") -> None:
        if self._task is not None:
            shown = f"{done:,} {unit}" + (f", {facts}" if facts else "")
            self._bar.update(self._task, completed=done, total=total or None, facts=shown)

    def end(self, record: StageRecord) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        super().end(record)

    def _print(self, text: str) -> None:
        self._bar.console.print(text, style="dim", soft_wrap=True)


class NoRun(RunLines):
    """Nothing at all (`--quiet`)."""

    def _print(self, text: str) -> None: ...


def make_run_progress(quiet: bool) -> RunLines:
    if quiet:
        return NoRun()
    return RunBar() if sys.stderr.isatty() else RunLines()
