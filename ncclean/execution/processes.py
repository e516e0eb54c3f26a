"""Work on shards by several processes, or in this one if there is little to do."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any, TypeVar

from ncclean.data.shards import ShardRef

T = TypeVar("T")

# Processes take seconds to start; less than this is done sooner by one.
_BYTES_WORTH_A_PROCESS = 64 << 20


class Processes:
    """Calls functions in processes, or in this one if there is little to do."""

    def __init__(self, workers: int | None, shards: Sequence[ShardRef]) -> None:
        worth = sum(shard.size for shard in shards) // _BYTES_WORTH_A_PROCESS
        self._workers = min(workers or min(os.cpu_count() or 1, max(worth, 1)), len(shards))
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Processes:
        if self._workers > 1:
            # Fork would copy the threads of torch, if it has been loaded. Ctrl-C is the parent's.
            context = multiprocessing.get_context("spawn")
            ignore = (signal.SIGINT, signal.SIG_IGN)
            self._pool = ProcessPoolExecutor(self._workers, context, signal.signal, ignore)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[..., T], tasks: Iterable[tuple[int, tuple[Any, ...]]]
    ) -> Iterator[tuple[int, T]]:
        """Results with the number of their task, as they come; few tasks exist at a time."""
        if self._pool is None:
            for number, arguments in tasks:
                yield number, function(*arguments)
            return
        running: dict[Future[T], int] = {}
        for number, arguments in tasks:
            running[self._pool.submit(function, *arguments)] = number
            if len(running) > self._workers:
                yield from _finished(running)
        while running:
            yield from _finished(running)


def _finished(running: dict[Future[T], int]) -> Iterator[tuple[int, T]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        yield running.pop(future), future.result()
