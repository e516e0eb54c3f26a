"""Evaluate conditions that a person types, each in its own process.

DuckDB's memory limit ignores the text that functions make, and its interrupt waits for the current
function. The process has external limits of memory and time, and is killed once nobody waits for
it. So no condition, however written, delays a decision or the end of a review.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import re
import sys
import threading
import uuid
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from ncclean.base.isolated import isolated, limit_memory
from ncclean.errors import InputError
from ncclean.storage.catalog import connect, first_line, lock
from ncclean.storage.column_names import ColumnNames
from ncclean.storage.expressions import bind_expression
from ncclean.storage.quoting import quoted

_SECONDS = 60.0
_AT_ONCE = 2
_KEPT = 16  # conditions with known pairs
_OWN_MEMORY = 1 << 30  # bytes besides DuckDB's: interpreter, libraries, rows being read
_MOST_ON_DISK = "8GB"  # of a sort
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_ALONE, PLACE = "_scores_alone", "_place"


class Matches:
    """A Parquet file with places of rows in the column `place`, deleted with this object.

    It has the pairs for which a condition holds, or values to sort them by.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        weakref.finalize(self, file.unlink, missing_ok=True)


@dataclass(frozen=True)
class Condition:
    """An SQL condition over score files: checked as `sql`, or as typed by a person in `text`."""

    files: tuple[str, ...]
    names: ColumnNames
    memory_limit: str | None
    text: str = ""
    sql: str = ""

    async def matches(self, folder: Path, seconds: float | None = None) -> Matches:
        """Evaluate the condition in a process of its own; it ends if the calling task is cancelled.

        Raises `InputError` for an invalid condition, or one that needs too much memory or time.
        """
        out = folder / f"matches_{uuid.uuid4().hex}.parquet"
        matches = Matches(out)
        process = await asyncio.create_subprocess_exec(
            *isolated(__name__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
        )
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            process.stdin.write(pickle.dumps((self, str(out))))
            answer = await asyncio.wait_for(process.stdout.read(), seconds)
        except asyncio.TimeoutError:
            raise InputError(f"the condition takes more than {seconds:g} s") from None
        finally:
            if not answer:  # else it ends by itself, and asyncio needs to notice
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
        problem = json.loads(answer)["error"] if answer else self._too_large()
        if problem is not None:
            raise InputError(problem)
        return matches

    def write(self, out: str) -> None:
        """Write the places of the pairs for which the condition holds to a Parquet file."""
        connection = connect(
            self.files, self.memory_limit, view=_ALONE, place=PLACE, work=Path(out).parent,
            is_own=True,
        )  # fmt: skip
        connection.execute(f"SET max_temp_directory_size = '{_MOST_ON_DISK}'")
        lock(connection)
        limit_memory(_memory_limit(connection) + _OWN_MEMORY)
        connection.execute(f"CREATE VIEW scores AS SELECT * EXCLUDE ({PLACE}) FROM {_ALONE}")
        sql = self.sql or self._bound(connection)
        connection.execute(
            f"COPY (SELECT {PLACE} AS place FROM {_ALONE} AS scores "
            f"WHERE coalesce(({sql})::BOOLEAN, false)) TO {quoted(out)} (FORMAT parquet)"
        )

    def answer(self, out: str) -> dict[str, str | None]:
        """Write the places of the matching pairs to a Parquet file; return a failure as `error`.

        `error` is None if there is none.
        """
        try:
            self.write(out)
        except (MemoryError, duckdb.OutOfMemoryException):
            return {"error": self._too_large()}
        except InputError as error:
            is_large = isinstance(error.__cause__, duckdb.OutOfMemoryException)
            return {"error": self._too_large() if is_large else str(error)}
        except duckdb.Error as error:
            return {"error": f"the condition: {first_line(error)}"}
        return {"error": None}

    def _bound(self, connection: duckdb.DuckDBPyConnection) -> str:
        expression = bind_expression(
            connection, self.text, "the condition", self.names, is_condition=True
        )
        if expression.ranks:
            raise InputError("the condition: rank() is for --where, when the review starts")
        return expression.sql

    def _too_large(self) -> str:
        return f"the condition takes more memory than --memory-limit {self.memory_limit} allows"


@dataclass
class _Evaluation:
    task: asyncio.Task[Matches]
    readers: int = 0


class Conditions:
    """Evaluates conditions for the requests of a page, each once for all waiting requests."""

    def __init__(
        self,
        files: tuple[str, ...],
        names: ColumnNames,
        memory_limit: str | None,
        folder: Path,
        seconds: float = _SECONDS,
    ) -> None:
        self._files, self._names, self._memory_limit = files, names, memory_limit
        self._folder, self._seconds = folder, seconds
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._evaluations: OrderedDict[str, _Evaluation] = OrderedDict()
        self._has_ended = False

    async def matches(self, text: str) -> Matches:
        """Return the pairs for which a condition, typed by a person, holds.

        The evaluation is abandoned when the last task waiting for it is cancelled. Raises
        `InputError` as `Condition.matches` does, and if the review ends.
        """
        if self._has_ended:
            raise InputError("the review has ended")
        evaluation = self._evaluations.get(text)
        if evaluation is None:
            evaluation = _Evaluation(asyncio.ensure_future(self._evaluate(text)))
            self._evaluations[text] = evaluation
        self._evaluations.move_to_end(text)
        evaluation.readers += 1
        try:
            await asyncio.wait([evaluation.task])
        finally:
            evaluation.readers -= 1
            self._tidy(text, evaluation)
        if evaluation.task.cancelled():
            raise InputError("the review has ended")
        return evaluation.task.result()

    def stop(self) -> None:
        """Abandon the evaluation of all conditions."""
        self._has_ended = True
        for evaluation in self._evaluations.values():
            evaluation.task.cancel()

    async def _evaluate(self, text: str) -> Matches:
        async with self._slots:
            condition = Condition(self._files, self._names, self._memory_limit, text)
            return await condition.matches(self._folder, self._seconds)

    def _tidy(self, text: str, evaluation: _Evaluation) -> None:
        """Forget conditions that failed or that nobody waits for, and the oldest results."""
        task = evaluation.task
        is_useless = not evaluation.readers
        if task.done():
            is_useless = task.cancelled() or task.exception() is not None
        elif is_useless:
            task.cancel()
        if is_useless and self._evaluations.get(text) is evaluation:
            del self._evaluations[text]
        while len(self._evaluations) > _KEPT:
            finished = (at for at, one in self._evaluations.items() if one.task.done())
            oldest = next(finished, None)
            if oldest is None:
                break
            del self._evaluations[oldest]


def _memory_limit(connection: duckdb.DuckDBPyConnection) -> int:
    """DuckDB's memory limit in bytes, from its text such as `381.4 MiB`."""
    ((text,),) = connection.execute("SELECT current_setting('memory_limit')").fetchall()
    number, unit = re.fullmatch(r"([\d.]+) ?(\w+)", str(text)).groups()  # type: ignore[union-attr]
    return int(float(number) * _UNITS[unit])


def main() -> None:
    """Evaluate a pickled condition from standard input, and print the answer as JSON.

    The process ends when the one that started it closes the input.
    """
    condition, out = pickle.load(sys.stdin.buffer)

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    answer: dict[str, Any] = condition.answer(out)
    print(json.dumps(answer), flush=True)
    os._exit(0)
