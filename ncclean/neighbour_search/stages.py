"""Stages of a search: tasks that each write a file, here or on a cluster, each done once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ncclean.base.formats import counted
from ncclean.base.progress import Progress
from ncclean.neighbour_search.chunked import VALUES, chunks
from ncclean.runners.runner import Runner
from ncclean.storage.array_files import ArrayFolder, Arrays, Shapes


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
        """Run a function for every item whose output file is missing, as tasks.

        The file of task i is `prefix-i`. Returns the names of all.
        """
        names = [f"{prefix}-{number}" for number in range(len(arguments))]
        pending = [number for number, name in enumerate(names) if name not in self._names]
        if not pending:
            return names
        self.progress.say(f"{text}, {counted(len(names), 'task')}")
        done = len(names) - len(pending)
        tasks = ((number, (self.work, number, *arguments[number])) for number in pending)
        for number, _ in self._runner.map(function, tasks):
            self._names.add(names[number])
            done += 1
            self.progress.advance(done, len(names), "tasks")
        return names

    @contextlib.contextmanager
    def writing(self, name: str, shapes: Shapes) -> Iterator[Arrays]:
        """Create a file of arrays, mapped for writing."""
        with self.work.writing(name, shapes) as arrays:
            yield arrays
        self._names.add(name)

    def joined(self, name: str, names: Sequence[str], columns: Mapping[str, str]) -> Arrays:
        """Concatenate arrays of several files into a new one; `columns` maps new names to theirs.

        Returns them, mapped.
        """
        if not self.has(name):
            files = [self.work.load(one) for one in names]
            shapes = {
                new: ((sum(len(file[old]) for file in files),), files[0][old].dtype)
                for new, old in columns.items()
            }
            with self.writing(name, shapes) as arrays:
                for new, old in columns.items():
                    begin = 0
                    for file in files:
                        arrays[new][begin : begin + len(file[old])] = file[old]
                        begin += len(file[old])
        return self.work.load(name)

    def scattered(self, names: Sequence[str], column: str, out: np.ndarray) -> None:
        """Collect into (n,) `out` a column whose values are spread over files by pair."""
        for file in map(self.work.load, names):
            for rows in chunks(len(file["pairs"]), VALUES):
                out[file["pairs"][rows]] = file[column][rows]

    def save(self, name: str, **arrays: Any) -> None:
        """Write a file that later tasks share, unless it exists."""
        if name not in self._names:
            self.work.save(name, arrays)
            self._names.add(name)

    def drop(self, *prefixes: str) -> None:
        """Delete the files whose names begin with a prefix, once nothing reads them any more."""
        gone = [name for name in self._names if name.startswith(prefixes)]
        self.work.remove(gone)
        self._names.difference_update(gone)
