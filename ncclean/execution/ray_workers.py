"""The workers on a Ray cluster: the actor that scores shards, and the pool of actors.

A worker is one process: if it dies, or its device fails, another one replaces it wherever there is
room. The pool has as many as requested, or as the cluster currently has room for, and parks those
that cannot load the model or only fail.
"""

from __future__ import annotations

import itertools
import logging
import os
import resource
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from ncclean.base.config import ScoreOptions
from ncclean.errors import DeviceError, InputError, ModelError, NccleanError
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.encoder import EncoderRequest, Speed
from ncclean.execution.engine import PartWriter, ShardOutcome, ShardTask
from ncclean.execution.local_engine import LocalEngine
from ncclean.execution.ray_metrics import WorkerMetrics
from ncclean.execution.shift import NoiseShift
from ncclean.models.estimator import ModelIdentity
from ncclean.models.shift_cache import FOLDER_VARIABLE
from ncclean.runners.ray_cluster import SAY_SECONDS, TICK_SECONDS, Watch, get, one_line, room

logger = logging.getLogger(__name__)

SHARDS_PER_WORKER = 2
# A worker that fails this many shards in a row gets no more.
_FAILURES_IN_A_ROW = 3
# Memory of a worker beyond its peak while loading: waiting images, a batch, two shards.
_MEMORY_MARGIN = 2 << 30


class Place(NamedTuple):
    """The node and the GPUs on which a worker runs, with the node's name for people."""

    node: str
    gpus: str
    host: str

    def __str__(self) -> str:
        gpus = f", GPU {self.gpus}" if self.gpus else ""
        return f"node {self.host} ({self.node[:8]}{gpus})"


@dataclass(frozen=True)
class Loaded:
    """The report of a worker that has loaded the model; `memory` is its peak, in bytes."""

    identity: ModelIdentity
    device: str
    memory: int


class ShardWorker:
    """The Ray actor of a worker: opens an engine once, scores shards and writes their parts."""

    def __init__(
        self, request: EncoderRequest, options: ScoreOptions, columns: ColumnSources, name: str
    ) -> None:
        self._request = request
        self._options = options
        self._columns = columns
        self._metrics = WorkerMetrics(name, str(self.place()))

    def place(self) -> Place:
        """Return the node and GPUs of this worker, also while the model is loading."""
        context = ray.get_runtime_context()
        gpus = ",".join(context.get_accelerator_ids().get("GPU", []))
        return Place(context.get_node_id(), gpus, ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def load(self) -> Loaded:
        """Load the estimator and report on it. Raises `ModelError`."""
        # Ray sets OMP_NUM_THREADS to this worker's number of cores.
        encoder = self._request.open(self._options, self._columns)
        self._engine = LocalEngine(encoder, self._options, self._columns, raises=True)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        return Loaded(self._engine.identity, encoder.device, peak)

    def score(self, task: ShardTask, writer: PartWriter) -> ShardOutcome:
        """Score one shard on this worker and write its part.

        Raises `DeviceError`, `InputError` if the part cannot be written, and other errors that the
        shard's data do not explain.
        """
        outcomes: list[ShardOutcome] = []
        with self._metrics.of_shard(task.shard, outcomes):
            self._engine.run([task], writer, lambda shard, outcome: outcomes.append(outcome))
        return outcomes[0]

    def estimate_shift(self, seed: int, tolerance: float) -> NoiseShift:
        """Return the estimator's mean cosine on noise, the boundary of OSA, with its spread."""
        return self._engine.estimate_shift(seed, tolerance)

    def speed(self) -> Speed:
        """Measure how fast this worker scores."""
        return self._engine.speed()


@dataclass(eq=False)
class Worker:
    """A worker of a Ray cluster as the driver sees it: its actor, state and running calls."""

    name: str
    handle: Any
    place: Place | None = None  # None until its process has started
    loaded: Loaded | None = None
    is_parked: bool = False
    running: list[Call] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name} on {self.place}" if self.place else self.name


@dataclass(eq=False)
class Call:
    """A call running on a worker, and when it started; `task` is the shard that it scores."""

    worker: Worker
    method: str
    since: float
    task: ShardTask | None = None
    alone: bool = False  # the worker has no other shard, so this one caused its death


class WorkerPool:
    """A pool of Ray workers with `gpus` and `cpus` each: `wanted` of them, or as many as fit."""

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
        self._needs = {"GPU": gpus, "CPU": cpus, "memory": 0.0}
        self._wanted = wanted
        self.watch = Watch()
        self.workers: list[Worker] = []
        self.calls: dict[Any, Call] = {}
        self._failures: Counter[Place] = Counter()  # in a row, without a success
        self.identity: ModelIdentity | None = None
        run = uuid.uuid4().hex[:6]  # other runs in the cluster have workers, too
        self._names = (f"ncclean-worker-{run}-{number}" for number in itertools.count())
        self._said = time.monotonic()

    @property
    def usable(self) -> list[Worker]:
        """The workers that are not parked for repeated failures, started or not."""
        return [worker for worker in self.workers if not worker.is_parked]

    @property
    def ready(self) -> list[Worker]:
        """The workers that have loaded the model."""
        return [worker for worker in self.usable if worker.loaded is not None]

    def is_healthy(self, worker: Worker) -> bool:
        """Check that the last shard on the worker's device succeeded, or that none has failed."""
        return worker.place is None or not self._failures[worker.place]

    def grow(self, most: int) -> None:
        """Start missing workers: as many as requested or as fit, but at most `most`."""
        parked = len(self.workers) - len(self.usable)
        wanted = min(most, self._wanted or max(1, self._room() - parked))
        if self.watch.head_is_silent:  # starting a worker would block
            return
        for _ in range(wanted - len(self.usable)):
            worker = self._new()
            self.workers.append(worker)
            self.call(worker, "place")
            self.call(worker, "load")

    def _room(self) -> int:
        return room(self.watch.nodes().values(), self._needs)

    def _new(self) -> Worker:
        name = next(self._names)
        actor = ray.remote(ShardWorker).options(
            name=name,
            num_gpus=self._needs["GPU"],
            num_cpus=self._needs["CPU"],
            memory=self._needs["memory"] or None,
            max_concurrency=SHARDS_PER_WORKER + 1,
            runtime_env={"env_vars": _environment()},
        )
        return Worker(name, actor.remote(self._request, self._options, self.columns, name))

    def call(self, worker: Worker, method: str, *args: object, **facts: Any) -> Call:
        """Call a method of a worker; `task` is the shard that it scores, if any."""
        call = Call(worker, method, time.monotonic(), **facts)
        name = f"{method} {call.task.shard.name}" if call.task else f"{method} {worker.name}"
        reference = getattr(worker.handle, method).options(name=name).remote(*args)
        self.calls[reference] = call
        if call.task is not None:
            worker.running.append(call)
        return call

    def answers(self) -> Iterator[tuple[Call, Any]]:
        """Yield the calls that ended within a tick, with what they returned or raised.

        None is the answer of a call that ended with its worker through no fault of its own. Raises
        errors that end the run: a dead cluster, an output that cannot be written, or the last error
        once all workers are parked.
        """
        self._say_who_waits()
        if not self.calls:
            time.sleep(TICK_SECONDS)
        self.watch.nodes()  # raises if the cluster has died
        for reference in ray.wait(list(self.calls), timeout=TICK_SECONDS)[0]:
            call = self.calls.pop(reference)
            if call in call.worker.running:
                call.worker.running.remove(call)
            try:
                answer = get(reference)
            except (ModelError, DeviceError, RayError) as error:
                answer = error
            yield from self._heard(call, answer)

    def _heard(self, call: Call, answer: Any) -> Iterator[tuple[Call, Any]]:
        """Draw conclusions about the worker of a call that has ended."""
        worker = call.worker
        if worker not in self.workers:  # already released
            return
        if isinstance(answer, NccleanError | RayTaskError):
            self.watch.answered()
            if worker.is_parked:
                answer = None
            else:
                yield from self._failed(worker, answer)
        elif isinstance(answer, RayError):
            if not isinstance(answer, ObjectLostError):
                if self.watch.died(answer):  # otherwise logged every second
                    logger.warning("worker %s died (%s)", worker, one_line(answer))
                yield from self._without(worker, answer)
        else:
            self.watch.answered()
            if call.method == "place":
                worker.place = answer
            elif call.method == "load":
                yield from self._begin(worker, answer)
            elif worker.place is not None:
                self._failures[worker.place] = 0
        yield call, answer

    def _begin(self, worker: Worker, loaded: Loaded) -> Iterator[tuple[Call, Any]]:
        """Start using a worker that has loaded the model, if its model is that of the others."""
        self.identity = self.identity or loaded.identity
        if loaded.identity != self.identity:
            error = ModelError(
                f"a worker has {loaded.identity}, others have {self.identity}: use the same files "
                "and an explicit --precision"
            )
            yield from self._failed(worker, error)
            return
        if self._needs["GPU"] and loaded.device == "cpu":
            logger.warning("torch sees no GPU in worker %s: it computes on its CPUs", worker)
        worker.loaded = loaded
        # For later workers; no more than the nodes have, or none would start.
        largest = max((has.get("memory", 0) for has in self.watch.nodes().values()), default=0)
        self._needs["memory"] = float(int(min(loaded.memory + _MEMORY_MARGIN, largest)))

    def _failed(self, worker: Worker, error: NccleanError | RayError) -> Iterator[tuple[Call, Any]]:
        """Replace a worker whose device failed; park one unlikely to do better.

        A parked worker keeps its place, so Ray must place its successor elsewhere.
        """
        place = worker.place or Place("", "", "")
        self._failures[place] += 1
        logger.warning("worker %s failed: %s", worker, one_line(error))
        if not isinstance(error, ModelError) and self._failures[place] < _FAILURES_IN_A_ROW:
            if isinstance(error, DeviceError) or worker.loaded is None:
                yield from self._without(worker)
            return
        worker.is_parked = True
        logger.warning("worker %s is parked: it gets no more shards", worker)
        if len(self.workers) - len(self.usable) >= self._room():
            if isinstance(error, ModelError):
                raise error
            raise InputError(
                f"no worker is left that does not fail ({one_line(error)}); what is done is kept: "
                "give the same command again when the nodes are well"
            ) from error

    def _without(self, worker: Worker, answer: Any = None) -> Iterator[tuple[Call, Any]]:
        """Remove a worker; its other calls get `answer`."""
        self.release(worker)
        for reference, call in list(self.calls.items()):
            if call.worker is worker:
                del self.calls[reference]
                yield call, answer

    def release(self, worker: Worker) -> None:
        """Stop a worker, and release its resources."""
        self.workers.remove(worker)
        ray.kill(worker.handle)

    def release_all(self) -> None:
        """Stop all workers of the pool."""
        for worker in list(self.workers):
            self.release(worker)
        self.calls.clear()

    def load(self) -> ModelIdentity:
        """Return the identity of the model, from the first worker that has loaded it.

        Raises `ModelError` if no worker can load it.
        """
        while self.identity is None or not self.ready:
            self.grow(1)
            for _ in self.answers():
                pass
        return self.identity

    def on_any(self, method: str, *args: object) -> Any:
        """Call a method on a worker that has loaded the model, trying another if that fails."""
        while True:
            self.load()
            call = self.call(self.ready[0], method, *args)
            while call in self.calls.values():
                for ended, answer in self.answers():
                    if ended is call and not (answer is None or isinstance(answer, Exception)):
                        return answer

    def _say_who_waits(self) -> None:
        """Log, while no worker is ready, whether they wait for room or load the model."""
        if self.ready or not self.usable:
            self._said = time.monotonic()
        if time.monotonic() - self._said < SAY_SECONDS:
            return
        self._said = time.monotonic()
        loading = sum(worker.place is not None for worker in self.usable)
        if loading:
            logger.warning("no worker is ready yet: %d load the model", loading)
        else:
            needs = " and ".join(f"{need:g} {kind}" for kind, need in self._needs.items() if need)
            logger.warning("no worker has started yet: each needs %s", needs)


def _environment() -> dict[str, str]:
    """Return the environment variables that a worker takes over from this process."""
    variables = {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}
    if FOLDER_VARIABLE in os.environ:
        variables[FOLDER_VARIABLE] = os.environ[FOLDER_VARIABLE]
    return variables
