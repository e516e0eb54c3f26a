"""The workers on a Ray cluster: the actor that scores shards, and the pool of them.

Workers are Ray actors that Ray restarts wherever there is room when their process or their node
dies. The pool has as many as were asked for, or as the cluster has room for by now, and gives up
those that cannot load the model.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError

from ncclean.config import ScoreOptions
from ncclean.errors import ModelError
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.encoder import EncoderRequest, Speed
from ncclean.execution.engine import Engine, PartWriter, ShardOutcome, ShardTask
from ncclean.execution.local_engine import LocalEngine
from ncclean.models.estimator import ModelIdentity
from ncclean.models.shift_cache import FOLDER_VARIABLE
from ncclean.runners.ray_cluster import (
    GROW_SECONDS,
    TICK_SECONDS,
    Silence,
    check_own_node,
    get,
    nodes,
    one_line,
)

logger = logging.getLogger(__name__)

SHARDS_PER_WORKER = 2


class ShardWorker:
    """The actor: opens an engine once, scores the shards it is given, writes their parts."""

    def __init__(
        self, request: EncoderRequest, options: ScoreOptions, columns: ColumnSources
    ) -> None:
        self._request = request
        self._options = options
        self._columns = columns
        self._engine: Engine | None = None
        self._loading = threading.Lock()

    def load(self) -> ModelIdentity:
        """Load the estimator, once per worker process. Raises `ModelError`."""
        return self._loaded().identity

    def node(self) -> str:
        """The node of the cluster that this worker runs on."""
        return str(ray.get_runtime_context().get_node_id())

    def score(self, task: ShardTask, writer: PartWriter, expected: ModelIdentity) -> ShardOutcome:
        """Score one shard on this worker and write its part.

        Raises `ModelError` if the model cannot be loaded here or is not the expected one, and
        `InputError` if the part cannot be written.
        """
        engine = self._loaded()
        if engine.identity != expected:
            raise ModelError(
                f"a worker has {engine.identity}, others have {expected}: use the same files and "
                "an explicit --precision"
            )
        outcomes: list[ShardOutcome] = []
        engine.run([task], writer, lambda shard, outcome: outcomes.append(outcome))
        return outcomes[0]

    def estimate_shift(self, seed: int, tolerance: float) -> float:
        """The estimator's mean cosine on noise, the boundary of OSA."""
        return self._loaded().estimate_shift(seed, tolerance)

    def speed(self) -> Speed:
        """Measure how fast this worker scores."""
        return self._loaded().speed()

    def _loaded(self) -> Engine:
        with self._loading:
            if self._engine is None:
                # Ray says with OMP_NUM_THREADS how many cores are this worker's.
                encoder = self._request.open(self._options, self._columns)
                self._engine = LocalEngine(encoder, self._options, self._columns)
            return self._engine


@dataclass(eq=False)
class Worker:
    handle: Any
    node: str | None = None  # None until it has started, or started again
    running: dict[Any, Call] = field(default_factory=dict)
    is_usable: bool = True  # its model loads; the one that does not keeps its place, see `park`


@dataclass(eq=False)
class Call:
    """A shard on a worker, and when it was submitted."""

    worker: Worker
    task: ShardTask
    node: str
    since: float
    alone: bool  # no other shard shared the worker at any time: its death is this shard's doing


class WorkerPool:
    """Workers of `gpus` and `cpus` each: `wanted` of them, or as many as there is room for."""

    def __init__(
        self,
        request: EncoderRequest,
        options: ScoreOptions,
        columns: ColumnSources,
        *,
        gpus: float,
        cpus: float,
        wanted: int | None,
    ) -> None:
        self._request = request
        self._options = options
        self.columns = columns
        self._gpus, self._cpus = gpus, cpus
        self._wanted = wanted
        self.workers: list[Worker] = []
        self._grown = 0.0
        self._load_errors: list[ModelError] = []
        self.silence = Silence()

    @property
    def usable(self) -> list[Worker]:
        """The workers whose model has not failed to load."""
        return [worker for worker in self.workers if worker.is_usable]

    def grow_now_and_then(self) -> None:
        """Start missing workers, unless this was tried a short while ago."""
        if time.monotonic() - self._grown > GROW_SECONDS:
            self.grow()

    def release(self) -> None:
        """Stop all workers of the pool."""
        for worker in self.workers:
            ray.kill(worker.handle)
        self.workers = []

    def grow(self) -> None:
        """Start missing workers, up to the number asked for, or as many as find room."""
        self._grown = time.monotonic()
        usable = sum(worker.is_usable for worker in self.workers)
        parked = len(self.workers) - usable
        wanted = self._wanted or max(1, self._room() - parked)
        for _ in range(wanted - usable):
            self.workers.append(self._new())

    def _room(self) -> int:
        total = ray.cluster_resources()  # type: ignore[no-untyped-call]
        rooms = [int(total.get(kind, 0) / need) for kind, need in self._needs() if need]
        return min(rooms, default=1)

    def _needs(self) -> list[tuple[str, float]]:
        return [("GPU", self._gpus), ("CPU", self._cpus)]

    def _new(self) -> Worker:
        actor = ray.remote(ShardWorker).options(
            num_gpus=self._gpus,
            num_cpus=self._cpus,
            max_restarts=-1,  # on another node if need be
            max_task_retries=0,  # whether a shard is tried again is decided here
            max_concurrency=SHARDS_PER_WORKER + 1,
            runtime_env={"env_vars": _environment()},
        )
        return Worker(actor.remote(self._request, self._options, self.columns))

    def park(self, worker: Worker, error: ModelError) -> None:
        """Give up a worker that cannot load the model, and start another one elsewhere.

        It keeps its place, so that Ray has to put its successor somewhere else.
        """
        worker.is_usable = False
        self._load_errors.append(error)
        place = f" on node {worker.node}" if worker.node else ""
        logger.warning("gave up a worker%s: %s", place, error)
        if len(self._load_errors) > 2 * len(nodes()) or not self._room_left():
            # Those given up keep their places: where they fill the cluster, no other can start.
            parked = len(self.workers) - len(self.usable)
            if not self.usable or parked >= self._room():
                raise error
        else:
            self.workers.append(self._new())

    def _room_left(self) -> bool:
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        return all(free.get(kind, 0) >= need for kind, need in self._needs() if need)

    def on_any(self, method: str, *args: object) -> Any:
        """Call a method on all usable workers; returns the first result."""
        self.grow()
        while True:
            calls = {
                getattr(worker.handle, method).remote(*args): worker
                for worker in self.workers
                if worker.is_usable
            }
            if not calls:
                raise self._load_errors[-1]
            result = self._first_result(calls)
            if result is not None:
                return result

    def _first_result(self, calls: dict[Any, Worker]) -> Any:
        waiting = set(calls)
        since, warned = time.monotonic(), False
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=TICK_SECONDS)
            if not ready:
                check_own_node()
            if not ready and not warned and time.monotonic() - since > GROW_SECONDS:
                warned = True
                self._warn_if_none_started(list(calls.values()))
            for reference in ready:
                waiting.discard(reference)
                try:
                    result = get(reference)
                    self.silence.answered()
                    return result
                except ModelError as error:
                    self.silence.answered()
                    self.park(calls[reference], error)
                except RayActorError as error:  # it is restarted
                    if self.silence.died(error):  # else it is said every second
                        logger.warning("a worker died; Ray restarts it (%s)", one_line(error))
                    time.sleep(TICK_SECONDS)
        return None

    def _warn_if_none_started(self, workers: list[Worker]) -> None:
        nodes = [worker.handle.node.remote() for worker in workers]
        if not ray.wait(nodes, timeout=TICK_SECONDS)[0]:
            needs = [f"{need:g} {kind}" for kind, need in self._needs() if need]
            logger.warning("no worker has started yet: each needs %s", " and ".join(needs))


def _environment() -> dict[str, str]:
    """The variables that a worker takes over from this process."""
    variables = {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}
    if FOLDER_VARIABLE in os.environ:
        variables[FOLDER_VARIABLE] = os.environ[FOLDER_VARIABLE]
    return variables
