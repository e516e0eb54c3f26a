"""Iterates over what a function yields in a worker process, behind its wall."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ncclean.errors import NccleanError, ShardError, one_line
from ncclean.workers import worker
from ncclean.workers.fork_server import SERVER
from ncclean.workers.worker import Worker, WorkerDied

T = TypeVar("T")

_SECONDS = 6.0  # of a processor, for one item


def contained(function: Callable[..., Iterator[T]], *arguments: Any) -> Iterator[T]:
    """Iterate over what a function of a module yields, in a process of its own.

    Raises `ShardError` if that process ends without an answer, and what the function raises; of
    libraries that panic, which is no `Exception`, a `ShardError` as well.
    """
    SERVER.imports(function.__module__)
    process = Worker(__name__)
    try:
        process.send((function, arguments))
        while True:
            item, error = process.receive()
            if error is not None:
                raise error
            if item is None:
                return
            yield item[0]
    except WorkerDied as died:
        raise ShardError(f"its reader {died}") from died
    finally:
        process.close()


def contained_once(function: Callable[..., Iterator[T]], *arguments: Any) -> Iterator[T]:
    """Iterate as `contained` does, or here if this process is behind a wall already."""
    if worker.is_behind_wall():
        return function(*arguments)
    return contained(function, *arguments)


def main(connection: Connection, descriptors: Sequence[int]) -> None:
    """Send what the function yields that the parent names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries say hundreds of lines before they end
    worker.limit_this_process()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        function, arguments = connection.recv()
        worker.limit_seconds(_SECONDS)
        error: BaseException | None = None
        try:
            for item in function(*arguments):
                connection.send(((item,), None))
                worker.progress()
        except (BrokenPipeError, ConnectionResetError):
            raise
        except BaseException as raised:
            error = raised
            if not isinstance(raised, NccleanError | OSError | ValueError | MemoryError):
                error = ShardError(one_line(raised))
        connection.send((None, error))
