"""Progress on stderr: one bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ncclean_pipelines.progress import Lines, Progress

from ncclean.base.progress import Pace, fact_text
from ncclean.base.visible_text import message

if TYPE_CHECKING:
    from rich.progress import TaskID


@contextlib.contextmanager
def shown_progress() -> Iterator[Progress]:
    """Yield a progress bar, or a log of lines where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield Lines(sys.stderr)
        return
    bar = Bar()
    try:
        yield bar
    finally:
        bar.stop()


class Bar:
    """A progress bar; messages stay as lines above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._counted: tuple[int, str] | None = None
        self._pace = Pace()
        self._bar.start()

    def say(self, text: str) -> None:
        self._console.print(message(text), style="dim", soft_wrap=True, markup=False)

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        pace = self._pace.facts(done, total, unit)
        pace.pop("ETA", None)  # the bar has its own
        of = f"/{total:,}" if total else ""
        stage = facts.pop("stage", None)
        text = ", ".join([f"{done:,}{of} {unit}", *map(fact_text, {**pace, **facts}.items())])
        text = message(text if stage is None else f"{stage}: {text}")
        if self._task is not None and self._counted == (total, unit):
            self._bar.update(self._task, completed=done, facts=text)
            return
        self._remove_task()
        self._counted = (total, unit)
        self._task = self._bar.add_task("", total=total or None, completed=done, facts=text)

    def stop(self) -> None:
        self._remove_task()
        self._bar.stop()

    def _remove_task(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
