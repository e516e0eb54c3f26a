"""Iterate over what a function yields in a worker process, within its limits."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, TypeVar

import pyarrow as pa

from ncclean.errors import NccleanError, ShardError, one_line
from ncclean.workers import worker
from ncclean.workers.fork_server import SERVER
from ncclean.workers.memory import shared_memory
from ncclean.workers.worker import Worker, WorkerDied

T = TypeVar("T")

_ITEMS_AHEAD = 2
_WORTH_SHARING = 1 << 16  # bytes of arrays in an item


class WorkerFailed(ShardError):
    """A worker process ended before its answer did."""


@dataclass(frozen=True)
class Limits:
    """Limits of a worker: bytes of memory, and CPU seconds without progress."""

    memory: int = worker.MEMORY_BYTES
    seconds: float = 6.0


_LIMITS = Limits()
# Errors that callers distinguish; others may not be picklable.
_AS_THEY_ARE = (NccleanError, pa.ArrowException, FileNotFoundError, PermissionError, MemoryError)


def contained(
    function: Callable[..., Iterator[T]], *arguments: Any, limits: Limits = _LIMITS
) -> Iterator[T]:
    """Iterate over what a function of a module yields, in a separate process.

    Arrays of numpy and Arrow arrive in memory that both processes share. Raises `WorkerFailed` if
    that process ends without an answer, and whatever the function raises; for libraries that panic,
    which is not an `Exception`, also a `ShardError`.
    """
    SERVER.imports(function.__module__)
    process = Worker(__name__)
    try:
        process.send((function, arguments, limits))
        while True:
            data, sizes, error = process.receive()
            if error is not None:
                raise error
            if data is None:
                return
            yield pickle.loads(data, buffers=_received(process.connection, sizes))
            process.send(None)  # another one may be made
    except WorkerDied as died:
        raise WorkerFailed(f"its reader {died}") from died
    finally:
        process.close()


def contained_once(function: Callable[..., Iterator[T]], *arguments: Any) -> Iterator[T]:
    """Iterate as `contained` does, or here if this process is already a worker."""
    if worker.is_behind_wall():
        return function(*arguments)
    return contained(function, *arguments)


def main(connection: Connection, descriptors: Sequence[int]) -> None:
    """Send what the function named by the parent yields."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries log hundreds of lines before they end
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        function, arguments, limits = connection.recv()
        worker.limit_this_process(limits.memory)
        worker.limit_seconds(limits.seconds)
        error: BaseException | None = None
        try:
            for number, item in enumerate(function(*arguments)):
                if number >= _ITEMS_AHEAD:
                    connection.recv()
                _send(connection, item)
                worker.progress()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except BaseException as raised:
            error = raised if isinstance(raised, _AS_THEY_ARE) else ShardError(one_line(raised))
        connection.send((None, (), error))


def _send(connection: Connection, item: object) -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(item, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    sizes = [len(one) for one in raw]
    if sum(sizes) < _WORTH_SHARING:
        data, sizes = pickle.dumps(item, protocol=5), []
    if not sizes:
        connection.send((data, sizes, None))
        return
    descriptor = shared_memory(sum(sizes))
    try:
        with mmap.mmap(descriptor, sum(sizes)) as memory:
            for one in raw:
                memory.write(one)
        # Only now: an error, such as of a full disk, is an answer of its own.
        connection.send((data, sizes, None))
        send_handle(connection, descriptor, None)
    finally:
        os.close(descriptor)


def _received(connection: Connection, sizes: Sequence[int]) -> Iterator[memoryview]:
    """Return the buffers of an item, in shared memory freed with the last array on it."""
    if not sizes:
        return
    descriptor = recv_handle(connection)
    memory = memoryview(mmap.mmap(descriptor, sum(sizes)))
    os.close(descriptor)
    begin = 0
    for size in sizes:
        yield memory[begin : begin + size]
        begin += size
