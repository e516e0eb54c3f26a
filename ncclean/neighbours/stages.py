"""Stages of a search: tasks that each write a file, here or on a cluster, each done once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ncclean.progress import Progress
from ncclean.runners.runner import Runner
from ncclean.storage.array_files import ArrayFolder


class Stages:
    """Runs the stages of one search over the files of `work`."""

    def __init__(self, work: ArrayFolder, runner: Runner, progress: Progress) -> None:
        self.work, self.progress = work, progress
        self._runner = runner
        self._names = work.names()

    def has(self, *names: str) -> bool:
        return self._names.issuperset(names)

    def run(
        self,
        text: str,
        prefix: str,
        function: Callable[..., None],
        arguments: Sequence[tuple[Any, ...]],
    ) -> list[str]:
        """Call `function(work, number, *arguments[number])` where its file is missing.

        The file of task i is `prefix-i`. Returns the names of all.
        """
        names = [f"{prefix}-{number}" for number in range(len(arguments))]
        pending = [number for number, name in enumerate(names) if name not in self._names]
        if not pending:
            return names
        self.progress.say(f"{text}, {len(names):,} tasks")
        done = len(names) - len(pending)
        tasks = ((number, (self.work, number, *arguments[number])) for number in pending)
        for number, _ in self._runner.map(function, tasks):
            self._names.add(names[number])
            done += 1
            self.progress.advance(done, len(names), "tasks")
        return names

    def save(self, name: str, **arrays: Any) -> None:
        """Write a file that the tasks of later stages share, unless it is there."""
        if name not in self._names:
            self.work.save(name, arrays)
            self._names.add(name)

    def drop(self, *prefixes: str) -> None:
        """Remove the files whose names begin so: nothing reads them any more."""
        gone = [name for name in self._names if name.startswith(prefixes)]
        self.work.remove(gone)
        self._names.difference_update(gone)
