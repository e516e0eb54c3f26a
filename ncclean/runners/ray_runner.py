"""Run functions as tasks of a Ray cluster, which repeats a task after any failure.

Each call publishes its output whole and sends back little, so Ray may rerun it on another node when
a worker or a node dies.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ncclean.errors import InputError
from ncclean.runners.ray_cluster import SAY_SECONDS, TICK_SECONDS, Watch, connect, get, one_line
from ncclean.runners.runner import Tasks

T = TypeVar("T")

logger = logging.getLogger(__name__)

_RETRIES = 5


class RayTasks:
    """Calls functions as tasks of one core each; `workers` at a time, or one for each core.

    Raises `InputError` if there is no cluster at the address. Closing it leaves the cluster.
    """

    is_remote = True

    def __init__(self, address: str | None, workers: int | None) -> None:
        self._connected = connect(address)
        self._watch = Watch()
        self._asked_for = workers

    @property
    def workers(self) -> int:
        """The number of concurrent tasks: as requested, or one per core of the cluster now."""
        return self._asked_for or max(self._cores, 1)

    @property
    def _cores(self) -> int:
        return int(sum(has.get("CPU", 0) for has in self._watch.nodes().values()))

    def __enter__(self) -> RayTasks:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._connected:
            ray.shutdown()
            self._connected = False

    def map(self, function: Callable[..., T], tasks: Tasks) -> Iterator[tuple[int, T]]:
        """Yield results with the number of their task, as they arrive; few tasks exist at a time.

        Raises what a task raises, and `InputError` for one that repeatedly ended its worker.
        """
        remote: Any = ray.remote(num_cpus=1, max_retries=_RETRIES)(function)
        waiting = iter(tasks)
        running: dict[Any, int] = {}
        said = time.monotonic()
        try:
            while True:
                while len(running) < self._room() and (task := next(waiting, None)) is not None:
                    number, arguments = task
                    named = remote.options(name=f"{function.__name__} {number}")
                    running[named.remote(*arguments)] = number
                if not running:
                    return
                ready, _ = ray.wait(list(running), timeout=TICK_SECONDS)
                if ready or self._cores:
                    said = time.monotonic()
                elif time.monotonic() - said > SAY_SECONDS:
                    said = time.monotonic()
                    logger.warning("no node has a core; waiting for one to join")
                for reference in ready:
                    yield running.pop(reference), _result(reference)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def everywhere(self, function: Callable[[], None]) -> None:
        """Call `function` on each live node; skip one that leaves meanwhile."""
        remote: Any = ray.remote(num_cpus=0)(_call)  # of functions only, not of methods
        places = [NodeAffinitySchedulingStrategy(one, soft=False) for one in self._watch.nodes()]
        for called in [remote.options(scheduling_strategy=one).remote(function) for one in places]:
            with contextlib.suppress(RayError):
                get(called)

    def _room(self) -> int:
        """Number of concurrent tasks: one more than run, so that no core waits for the driver."""
        return self._asked_for or self.workers + 1


def _call(function: Callable[[], None]) -> None:
    function()


def _result(reference: Any) -> Any:
    try:
        return get(reference)
    except ray.exceptions.RayTaskError:
        raise
    except RayError as error:
        raise InputError(
            f"a task ended its worker {_RETRIES + 1} times: {one_line(error)}; what is done is "
            "kept, run the same command again to go on"
        ) from error
