"""A worker process with bounded memory, bounded time, and a sentence for its end."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ncclean.base.isolated import limit_memory
from ncclean.workers.fork_server import SERVER, exit_status

T = TypeVar("T")

# In addition to what a worker has imported. An ordinary shard uses some hundred megabytes of it.
MEMORY_BYTES = 2 << 30


class WorkerDied(Exception):
    """A worker ended without an answer; the text is a sentence that says how.

    `is_innocent` if another process may have been the reason.
    """

    def __init__(self, status: int | None) -> None:
        super().__init__(how_it_ended(status))
        self.is_innocent = status in (None, -signal.SIGKILL)


class Worker:
    """A process that runs `main(connection, descriptors)` of a module."""

    def __init__(self, module: str, inherited: Sequence[int] = ()) -> None:
        self.connection, self._pid, self._status = SERVER.fork(module, list(inherited))

    def send(self, message: Any) -> None:
        """Send a message; one to a dead worker is lost."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def receive(self) -> Any:
        """The next message. Raises `WorkerDied`."""
        try:
            return self.connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerDied(exit_status(self._status)) from error

    def close(self) -> None:
        """End the process, if it has not ended yet, and the connection to it."""
        self.connection.close()
        self.end()
        os.close(self._status)

    def end(self) -> None:
        """End the process, if it has not ended yet."""
        ended = select.poll()  # `select` takes no descriptor beyond a thousand
        ended.register(self._status, select.POLLIN)
        if not ended.poll(0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)


@dataclass(frozen=True)
class Logged:
    """A record of a worker's log."""

    name: str
    level: int
    text: str

    def log(self) -> None:
        """Log it here."""
        logging.getLogger(self.name).log(self.level, "%s", self.text)


class Parent(logging.Handler):
    """The other end of a worker's connection, for several threads, and for what they log."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection, self._sending = connection, threading.Lock()
        logger = logging.getLogger("ncclean")
        logger.propagate = False
        logger.addHandler(self)

    def receive(self) -> Any:
        """The next message; raises `EOFError` if the parent has ended."""
        return self._connection.recv()

    def send(self, message: object) -> None:
        """Send a message."""
        with self._sending:
            self._connection.send(message)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            self.send(Logged(record.name, record.levelno, self.format(record)))


def how_it_ended(status: int | None) -> str:
    """Return a sentence without a subject for the exit status of a process that gave no answer."""
    if status == -signal.SIGPROF:
        return "came to no end within the seconds that it may compute"
    if status == -signal.SIGKILL:
        return "was ended by the system, as happens where memory runs out"
    if status is not None and status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    if status is None:
        return "was ended with the process that it was forked from"
    return f"ended by itself, with status {status}"


def limit_this_process(memory: int = MEMORY_BYTES) -> None:
    """Limit this process to this many bytes more than it has; larger requests fail."""
    limit_memory(_data_bytes() + memory)
    trust(True)


def trust(is_trusted: bool) -> None:
    """Let this process do what may end it, or have others do that again."""
    global _is_trusted
    _is_trusted = is_trusted


def is_behind_wall() -> bool:
    """Check whether this process may do what may end it: its parent continues without it."""
    return _is_trusted


def limit_seconds(seconds: float) -> None:
    """Limit this process's computing until the next call; 0 stands for any time.

    Counts CPU seconds of all threads. Then the kernel ends the process, whatever it is doing.
    """
    global _seconds
    _seconds = seconds
    progress()


def progress() -> None:
    """Note that something has finished: the seconds of `limit_seconds` start again."""
    if _seconds or signal.getitimer(signal.ITIMER_PROF)[0]:
        signal.setitimer(signal.ITIMER_PROF, _seconds)


_seconds = 0.0
_is_trusted = False


def in_a_fork(work: Callable[[], T], seconds: float) -> T:
    """Call a function in a fork of this process, which must have one thread.

    Raises `WorkerDied` if it dies before answering, and whatever the function raises.
    """
    reads, writes = os.pipe()
    if pid := os.fork():
        os.close(writes)
        with open(reads, "rb") as answer:
            data = answer.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            raise WorkerDied(status)
        result, error = pickle.loads(data)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]
    try:
        limit_seconds(seconds)
        try:
            answered: tuple[Any, Exception | None] = work(), None
        except Exception as error:
            answered = None, error
        with open(writes, "wb") as end:
            pickle.dump(answered, end)
        os._exit(0)
    finally:
        os._exit(1)


def _data_bytes() -> int:
    """Return the bytes that count for the memory limit so far."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 1 << 30
