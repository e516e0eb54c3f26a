"""Run stages of a search: tasks and queries that each write a file of arrays, each done once.

Tasks run here or on a cluster. Results over all pairs, such as groups and their sizes, come from
queries of DuckDB, which spills sorts that exceed its memory to disk.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ncclean.base.formats import counted
from ncclean.base.progress import Progress
from ncclean.base.scratch import process_folder
from ncclean.errors import InputError
from ncclean.runners.runner import Runner
from ncclean.storage.array_files import ArrayFolder, Arrays, Shapes

CHUNK_ROWS = 4096  # of vectors
VALUES = 1 << 18  # of numbers
SQL_MEMORY = "64MB"


def chunks(count: int, size: int = CHUNK_ROWS) -> Iterator[slice]:
    """Yield consecutive slices that cover `count` rows, of at most `size` rows each."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


class Stages:
    """The stages of one search, which exchange arrays through files in the folder `work`.

    A stage whose file exists is not run again.
    """

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
        """Run a function for every item whose output file is missing, as tasks of the runner.

        The file of task i is `prefix-i`. Returns the names of all files.
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

    def select(self, name: str, query: str, **columns: Any) -> Arrays:
        """Write the columns of a query to the file `name`, in row order; return them, mapped.

        The query reads the table `numbered`, with the `columns` and the number of each `row`,
        int32. It may sort, but not group rows or look across them, which needs more memory in
        DuckDB. Raises `InputError` if the disk has no room.
        """
        if not self.has(name):
            with self._result(query, columns) as result:
                count, start = len(result), 0
                with result.to_arrow_reader(VALUES) as reader:
                    kinds = {field.name: field.type.to_pandas_dtype() for field in reader.schema}
                    shapes = {column: ((count,), kind) for column, kind in kinds.items()}
                    with self.writing(name, shapes) as arrays:
                        for batch in reader:
                            for column in arrays:
                                arrays[column][start : start + len(batch)] = batch[column]
                            start += len(batch)
        return self.work.load(name)

    def first_rows(
        self, by: str, first: np.ndarray, sizes: np.ndarray | None = None, **columns: Any
    ) -> None:
        """Write into `first` (n,), for each row, the first row with equal values of `by`.

        `by` is SQL over the `columns`. The number of such rows is written into `sizes` (n,), which
        must be zeros before.
        """
        query = (
            f"SELECT row, value IS DISTINCT FROM lag(value) OVER () AS is_first FROM (SELECT row, "
            f"{by} AS value FROM numbered ORDER BY value, row)"
        )
        with self._result(query, columns) as result, result.to_arrow_reader(VALUES) as reader:
            last = -1  # the first row that equals the last one so far
            for batch in reader:
                rows = np.asarray(batch["row"])
                is_first = batch["is_first"].to_numpy(zero_copy_only=False)
                starts = np.flatnonzero(is_first)
                firsts = np.append(last, rows[starts])
                first[rows] = firsts[np.cumsum(is_first)]
                if sizes is not None:
                    sizes[firsts] += np.diff(starts, prepend=0, append=len(rows)).astype(np.int32)
                last = int(firsts[-1])
        if sizes is None:
            return
        for some in chunks(len(first), VALUES):
            sizes[some] = sizes[first[some]]

    @contextlib.contextmanager
    def _result(self, query: str, columns: Mapping[str, Any]) -> Iterator[duckdb.DuckDBPyRelation]:
        """The result of a query over `numbered`, kept on the disk."""
        try:
            self._sql.register("columns", pa.table(dict(columns)))
            self._sql.execute(
                "CREATE TABLE result AS WITH numbered AS (SELECT *, "
                f"(row_number() OVER () - 1)::INT AS row FROM columns) {query}"
            )
            yield self._sql.table("result")
            self._sql.execute("DROP TABLE result")
            self._sql.unregister("columns")
        except (duckdb.Error, pa.ArrowException) as error:
            raise InputError(f"cannot sort {', '.join(columns)}: {error}") from error

    @functools.cached_property
    def _sql(self) -> duckdb.DuckDBPyConnection:
        folder = str(process_folder())
        return duckdb.connect(
            config={"memory_limit": SQL_MEMORY, "temp_directory": folder, "threads": 1}
        )

    def gather(self, name: str, files: Sequence[str], shapes: Shapes) -> Arrays:
        """Put the columns of several files in row order, by their array `rows`, and write them.

        Returns the columns, whose names and shapes are `shapes`, mapped.
        """
        if not self.has(name):
            with self.writing(name, shapes) as arrays:
                for file in map(self.work.load, files):
                    for some in chunks(len(file["rows"]), VALUES):
                        for column, values in arrays.items():
                            values[file["rows"][some]] = file[column][some]
        return self.work.load(name)

    def save(self, name: str, **arrays: Any) -> None:
        """Write arrays that later tasks share to the file `name`, unless it exists."""
        if name not in self._names:
            self.work.save(name, arrays)
            self._names.add(name)

    def drop(self, *prefixes: str) -> None:
        """Delete the files whose names start with a prefix."""
        gone = [name for name in self._names if name.startswith(prefixes)]
        self.work.remove(gone)
        self._names.difference_update(gone)


class DisjointSets:
    """Disjoint sets of n rows (union-find); `parent` (n,) starts as each row itself."""

    def __init__(self, parent: np.ndarray) -> None:
        self._parent = parent
        for rows in chunks(len(parent), VALUES):
            parent[rows] = np.arange(rows.start, rows.stop)

    def join(self, one: np.ndarray, other: np.ndarray) -> None:
        """Merge the set of each of (m,) rows with the set of the other row (m,) beside it."""
        while True:
            one, other = self._find(one), self._find(other)
            apart = one != other
            if not apart.any():
                return
            one, other = one[apart], other[apart]
            np.minimum.at(self._parent, np.maximum(one, other), np.minimum(one, other))

    def finish(self) -> None:
        """Make every row's `parent` the first row of its set."""
        for rows in chunks(len(self._parent), VALUES):
            self._find(np.arange(rows.start, rows.stop))

    def _find(self, rows: np.ndarray) -> np.ndarray:
        """Return the first row of each row's set, as joined so far; halve paths."""
        while True:
            above: np.ndarray = self._parent[rows]
            higher = self._parent[above]
            if np.array_equal(above, higher):
                return above
            self._parent[rows] = higher
