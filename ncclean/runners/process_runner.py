"""Work on shards by several processes, or in this one if there is little to do."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from ncclean.base.isolated import SpawnedProcesses
from ncclean.base.options import usable_cores
from ncclean.data.shards import ShardRef
from ncclean.errors import NccleanError
from ncclean.runners.runner import InProcess, Tasks

T = TypeVar("T")

# Processes take seconds to start; one does less work than this sooner.
_BYTES_WORTH_A_PROCESS = 64 << 20


def processes_worth(workers: int | None, shards: Sequence[ShardRef]) -> int:
    """Return the number of processes: as requested, else one per core; fewer for little work."""
    worth = sum(shard.size for shard in shards) // _BYTES_WORTH_A_PROCESS
    return min(workers or min(usable_cores(), max(worth, 1)), len(shards))


def clock_share(tasks: int, workers: int) -> float:
    """Return the elapsed share of the time of equal tasks: a task runs on one worker."""
    return math.ceil(tasks / workers) / tasks


class Processes:
    """Calls functions in several processes of one thread each, or in this one if only one."""

    is_remote = False

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: SpawnedProcesses | None = None

    def __enter__(self) -> Processes:
        if self.workers > 1:
            self._pool = SpawnedProcesses(self.workers, _begin_process)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[..., T], tasks: Tasks) -> Iterator[tuple[int, T]]:
        """Yield results with their task's number, as they arrive; few tasks exist at a time."""
        if self._pool is None:
            yield from InProcess().map(function, tasks)
            return
        running: dict[Future[T], int] = {}
        for number, arguments in tasks:
            running[self._pool.submit(_in_one_thread, function, arguments)] = number
            if len(running) > self.workers:
                yield from _finished(running)
        while running:
            yield from _finished(running)

    def everywhere(self, function: Callable[[], None]) -> None:
        """Call it here."""
        function()


def _begin_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    os.environ["OMP_NUM_THREADS"] = "1"  # from libraries that a task loads first


def _in_one_thread(function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return function(*arguments)


def _finished(running: dict[Future[T], int]) -> Iterator[tuple[int, T]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        try:
            result = future.result()
        except BrokenProcessPool as error:
            raise NccleanError(
                "a process of this run was killed, for lack of memory perhaps: the same command "
                "goes on; --workers 1 takes less"
            ) from error
        yield running.pop(future), result
