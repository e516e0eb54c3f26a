"""The Ray engine: shards on the workers of a cluster, one loaded estimator on each.

Workers are Ray actors that Ray restarts wherever there is room when their process or their node
dies. What travels is a shard's reference one way and its statistics back; workers read shards and
write parts themselves. The engine keeps two shards on each worker, so that one is read while the
other is computed, and decides what to do with a shard whose worker died.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from ncclean import stores
from ncclean.config import ClusterOptions, ScoreOptions
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ModelError, NccleanError
from ncclean.execution.engine import ModelRequest, PartWriter, ShardOutcome, ShardTask
from ncclean.execution.local import LocalEngine, failed_result
from ncclean.models.estimator import ModelIdentity
from ncclean.storage.finalize import Calibration, finalize_file, finalize_parts, remove_parts
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.manifest import Manifest

logger = logging.getLogger(__name__)

_SHARDS_PER_WORKER = 2
# A shard that was alone on its worker when it died this many times is set aside as failed.
_DEATHS_ALLOWED = 2
_TICK_SECONDS = 1.0
_GROW_SECONDS = 10.0
_CONNECT_SECONDS = 10.0
_CONNECT_HINT = (
    "start one with `ray start --head`; a cluster with tokens needs RAY_AUTH_MODE=token and its "
    "token here; or take --engine ray without --ray-address for this machine"
)
# A shard is given to a second worker when nothing else is left and it has taken this long.
_STRAGGLER_FACTOR = 3.0
_STRAGGLER_SECONDS = 30.0
_FINALIZE_SHARDS = 64
_CPUS_PER_CPU_WORKER = 4


class ShardWorker:
    """The actor: loads the estimator once, scores the shards it is given, writes their parts."""

    def __init__(self, model: ModelRequest, options: ScoreOptions) -> None:
        self._model = model
        self._options = options
        self._engine: LocalEngine | None = None
        self._loading = threading.Lock()

    def load(self) -> ModelIdentity:
        """Load the estimator, once in the life of this process. Raises `ModelError`."""
        return self._loaded().identity

    def node(self) -> str:
        """The node that this worker runs on."""
        return str(ray.get_runtime_context().get_node_id())

    def score(self, task: ShardTask, writer: PartWriter, expected: ModelIdentity) -> ShardOutcome:
        """Score one shard and write its part.

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
        """The estimator's cosine on noise."""
        return self._loaded().estimate_shift(seed, tolerance)

    def _loaded(self) -> LocalEngine:
        with self._loading:
            if self._engine is None:
                # Ray says with OMP_NUM_THREADS how many cores are this worker's.
                self._engine = LocalEngine(self._model.load(), self._options)
            return self._engine


@dataclass(eq=False)
class _Worker:
    handle: Any
    node: str | None = None  # None until it has started, or started again
    running: dict[Any, _Call] = field(default_factory=dict)
    is_usable: bool = True  # its model loads; the one that does not keeps its place, see _park


@dataclass(eq=False)
class _Call:
    """A shard on a worker, since when."""

    worker: _Worker
    task: ShardTask
    node: str
    since: float
    alone: bool  # no other shard shared the worker at any time: its death is this shard's doing


class RayEngine:
    """Scores shards on a Ray cluster. Close it to let go of the workers.

    Raises `InputError` if there is no cluster at the address. Where no node is large enough for a
    worker it warns and waits: an autoscaler may bring one.
    """

    def __init__(
        self, model: ModelRequest, options: ScoreOptions, cluster: ClusterOptions | None = None
    ) -> None:
        self._cluster = cluster or ClusterOptions()
        self._connected = _connect(self._cluster.address)
        self._model = _absolute_model(model)
        self._gpus, self._cpus = _worker_size(self._cluster, model.device)
        threads = max(1, int(self._cpus))
        self._options = dataclasses.replace(options, decode_threads=threads)
        self._workers: list[_Worker] = []
        self._grown = 0.0
        self._identity: ModelIdentity | None = None
        self._load_errors: list[ModelError] = []

    @property
    def identity(self) -> ModelIdentity:
        """The model of the first worker that has loaded it. Raises `ModelError` if none can."""
        if self._identity is None:
            self._identity = self._on_any_worker("load")
        return self._identity

    def estimate_shift(self, seed: int, tolerance: float) -> float:
        """The estimator's cosine on noise, found by one worker."""
        shift: float = self._on_any_worker("estimate_shift", seed, tolerance)
        return shift

    def run(
        self,
        tasks: Sequence[ShardTask],
        writer: PartWriter,
        on_done: Callable[[ShardRef, ShardOutcome], None],
        on_progress: Callable[[int], None] = lambda samples: None,
    ) -> None:
        """Score the shards in whatever order they finish; see `Engine.run`."""
        _Run(self, tasks, _absolute_writer(writer), on_done, on_progress).until_done()

    def finalize(self, layout: ScoreLayout, manifest: Manifest, calibration: Calibration) -> None:
        """Write the final table on the cluster: a folder by many workers, one file by one."""
        shards, metadata = manifest.done_shards(), calibration.metadata(manifest)
        place = ScoreLayout(stores.location(_absolute(str(layout.out))))
        # CPU tasks that Ray retries; each file is published whole, so doing one again is harmless.
        remote = ray.remote(num_cpus=1, max_retries=5)
        if layout.is_single_file:
            pending = [remote(finalize_file).remote(place, shards, calibration, metadata)]
        else:
            task = remote(finalize_parts)
            pending = [
                task.remote(place, shards[start : start + _FINALIZE_SHARDS], calibration, metadata)
                for start in range(0, len(shards), _FINALIZE_SHARDS)
            ]
        self._release_workers()  # they hold the cores that finalizing needs
        for reference in pending:
            _get(reference)
        remove_parts(layout, manifest)

    def close(self) -> None:
        """Stop the workers, and Ray itself if this engine started it."""
        self._release_workers()
        if self._connected:
            ray.shutdown()
            self._connected = False

    def _release_workers(self) -> None:
        for worker in self._workers:
            ray.kill(worker.handle)
        self._workers = []

    def _grow(self) -> None:
        """Have as many workers as were asked for, or as the cluster has room for by now."""
        self._grown = time.monotonic()
        usable = sum(worker.is_usable for worker in self._workers)
        parked = len(self._workers) - usable
        wanted = self._cluster.workers or max(1, self._room() - parked)
        for _ in range(wanted - usable):
            self._workers.append(self._new_worker())

    def _room(self) -> int:
        total = ray.cluster_resources()  # type: ignore[no-untyped-call]
        rooms = [int(total.get(kind, 0) / need) for kind, need in self._needs() if need]
        return min(rooms, default=1)

    def _needs(self) -> list[tuple[str, float]]:
        return [("GPU", self._gpus), ("CPU", self._cpus)]

    def _new_worker(self) -> _Worker:
        actor = ray.remote(ShardWorker).options(
            num_gpus=self._gpus,
            num_cpus=self._cpus,
            max_restarts=-1,  # on another node if need be
            max_task_retries=0,  # whether a shard is tried again is decided here
            max_concurrency=_SHARDS_PER_WORKER + 1,
            runtime_env={"env_vars": {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}},
        )
        return _Worker(actor.remote(self._model, self._options))

    def _park(self, worker: _Worker, error: ModelError) -> None:
        """Give up a worker that cannot load the model, and have another one elsewhere.

        It keeps its place, so that Ray has to put its successor somewhere else.
        """
        worker.is_usable = False
        self._load_errors.append(error)
        logger.warning("a worker on node %s is given up: %s", worker.node, error)
        if len(self._load_errors) > 2 * len(_nodes()) or not self._room_left():
            if not any(w.is_usable for w in self._workers):
                raise error
        else:
            self._workers.append(self._new_worker())

    def _room_left(self) -> bool:
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        return all(free.get(kind, 0) >= need for kind, need in self._needs() if need)

    def _on_any_worker(self, method: str, *args: object) -> Any:
        """The result of the first usable worker to give one."""
        self._grow()
        while True:
            calls = {
                getattr(worker.handle, method).remote(*args): worker
                for worker in self._workers
                if worker.is_usable
            }
            if not calls:
                raise self._load_errors[-1]
            result = self._first_result(calls)
            if result is not None:
                return result

    def _first_result(self, calls: dict[Any, _Worker]) -> Any:
        waiting = set(calls)
        since, warned = time.monotonic(), False
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=_TICK_SECONDS)
            if not ready and not warned and time.monotonic() - since > _GROW_SECONDS:
                warned = True
                self._warn_if_none_started(list(calls.values()))
            for reference in ready:
                waiting.discard(reference)
                try:
                    return _get(reference)
                except ModelError as error:
                    self._park(calls[reference], error)
                except RayActorError:  # it is restarted
                    logger.warning("a worker died; Ray restarts it")
                    time.sleep(_TICK_SECONDS)
        return None

    def _warn_if_none_started(self, workers: list[_Worker]) -> None:
        nodes = [worker.handle.node.remote() for worker in workers]
        if not ray.wait(nodes, timeout=_TICK_SECONDS)[0]:
            needs = [f"{need:g} {kind}" for kind, need in self._needs() if need]
            logger.warning("no worker has started yet: each needs %s", " and ".join(needs))


class _Run:
    """One `RayEngine.run`: which shard is where, and what became of it."""

    def __init__(
        self,
        engine: RayEngine,
        tasks: Sequence[ShardTask],
        writer: PartWriter,
        on_done: Callable[[ShardRef, ShardOutcome], None],
        on_progress: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._expected = engine.identity
        self._writer = writer
        self._on_done = on_done
        self._on_progress = on_progress
        self._waiting = deque(_absolute_task(task) for task in tasks)
        self._names = {task.number: task.shard for task in tasks}  # as the caller knows them
        self._suspects: deque[ShardTask] = deque()  # were on a worker that died; now run alone
        self._left = {task.number for task in tasks}
        self._deaths: Counter[int] = Counter()
        self._calls: dict[Any, _Call] = {}
        self._questions: dict[Any, _Worker] = {}  # on which node a worker runs
        self._seconds: list[float] = []
        self._samples = 0

    def until_done(self) -> None:
        while self._left:
            if time.monotonic() - self._engine._grown > _GROW_SECONDS:
                self._engine._grow()
            self._assign()
            pending = [*self._calls, *self._questions]
            if not pending:
                time.sleep(_TICK_SECONDS)
                continue
            for reference in ray.wait(pending, timeout=_TICK_SECONDS)[0]:
                if reference in self._questions:
                    self._learn_node(reference)
                else:
                    self._settle(reference)
            self._on_progress(self._samples)

    def _assign(self) -> None:
        usable = [worker for worker in self._engine._workers if worker.is_usable]
        for worker in usable:
            if worker.node is None and worker not in self._questions.values():
                self._questions[worker.handle.node.remote()] = worker
        for depth in range(_SHARDS_PER_WORKER):
            for worker in usable:
                # One that has not started yet, for want of room, must not hold shards.
                if worker.node is None or len(worker.running) != depth:
                    continue
                if any(call.alone for call in worker.running.values()):
                    continue
                if depth == 0 and self._suspects:
                    self._submit(worker, self._suspects.popleft(), alone=True)
                elif self._waiting:
                    self._submit(worker, self._waiting.popleft())
                elif depth == 0 and (task := self._straggler()) is not None:
                    self._submit(worker, task)

    def _straggler(self) -> ShardTask | None:
        """A shard that takes far longer than the others, and that only one worker has."""
        if not self._seconds:
            return None
        patience = max(_STRAGGLER_SECONDS, _STRAGGLER_FACTOR * statistics.median(self._seconds))
        copies = Counter(call.task.number for call in self._calls.values())
        now = time.monotonic()
        for call in self._calls.values():
            if copies[call.task.number] == 1 and now - call.since > patience and not call.alone:
                return call.task
        return None

    def _learn_node(self, reference: Any) -> None:
        worker = self._questions.pop(reference)
        with contextlib.suppress(RayError):
            worker.node = ray.get(reference)

    def _submit(self, worker: _Worker, task: ShardTask, alone: bool = False) -> None:
        assert worker.node is not None
        reference = worker.handle.score.remote(task, self._writer, self._expected)
        call = _Call(worker, task, worker.node, time.monotonic(), alone)
        self._calls[reference] = worker.running[reference] = call

    def _settle(self, reference: Any) -> None:
        call = self._calls.pop(reference)
        del call.worker.running[reference]
        try:
            outcome = _get(reference)
        except ModelError as error:
            if call.worker.is_usable:
                self._engine._park(call.worker, error)
            self._again(call.task)
        except RayActorError as error:
            self._worker_died(call, error)
        except RayError as error:
            self._finish(call.task, f"{type(error).__name__}: {error}".splitlines()[0])
        else:
            self._seconds.append(time.monotonic() - call.since)
            self._done(call.task, outcome)

    def _worker_died(self, call: _Call, error: RayActorError) -> None:
        number = call.task.number
        call.worker.node = None  # Ray may restart it elsewhere
        if number not in self._left:
            return
        if _is_gone(call.node):
            logger.warning("a node left; shard %s is done again", call.task.shard.name)
            self._again(call.task)
            return
        self._deaths[number] += 1 if call.alone else 0
        logger.warning("the worker of shard %s died: %s", call.task.shard.name, _one_line(error))
        if self._deaths[number] >= _DEATHS_ALLOWED:
            self._finish(call.task, f"its worker died {_DEATHS_ALLOWED} times: {_one_line(error)}")
        elif number not in {task.number for task in self._suspects}:
            self._suspects.append(call.task)

    def _again(self, task: ShardTask) -> None:
        if task.number in self._left:
            self._waiting.appendleft(task)

    def _finish(self, task: ShardTask, reason: str) -> None:
        """The shard failed for good: it gets an empty part, as from the local engine."""
        self._done(task, self._writer.write(task, failed_result(reason)))

    def _done(self, task: ShardTask, outcome: ShardOutcome) -> None:
        if task.number not in self._left:  # another worker was quicker
            return
        self._left.discard(task.number)
        part = stores.location(self._writer.work) / task.shard.part_name
        if not stores.is_url(part) and not part.exists():
            raise InputError(
                f"a worker has written {part}, but it is not there for this machine: give --out a "
                "folder that all nodes share, or an object store"
            )
        self._samples += outcome.stats.rows
        self._on_done(self._names[task.number], outcome)


def _connect(address: str | None) -> bool:
    """Connect to the cluster, or start one here; whether this call did either."""
    if ray.is_initialized():
        return False
    try:
        if address is not None and ":" in address:  # Ray itself would wait for minutes
            host, port = address.removeprefix("ray://").rsplit(":", 1)
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False if address is None else None,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"no Ray cluster answers at {address!r} ({_one_line(error)}); {_CONNECT_HINT}"
        ) from error
    return True


def _worker_size(cluster: ClusterOptions, device: str) -> tuple[float, float]:
    """GPUs and CPUs of a worker: one GPU and its share of the cores, or a few cores.

    Raises `InputError` if no node is that large.
    """
    nodes = [node["Resources"] for node in _nodes()]
    largest = max(nodes, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)))
    gpus = cluster.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if largest.get("GPU", 0) and device != "cpu" else 0.0
    cpus = cluster.cpus_per_worker
    if cpus is None:
        share = largest.get("CPU", 1) / largest["GPU"] * gpus if gpus else _CPUS_PER_CPU_WORKER
        cpus = max(1.0, float(int(min(share, largest.get("CPU", 1)))))
    if cluster.workers is None and not any(
        node.get("GPU", 0) >= gpus and node.get("CPU", 0) >= cpus for node in nodes
    ):
        logger.warning(
            "no node has %g GPUs and %g CPUs now; waiting for one to join", gpus, cpus
        )  # an autoscaler may bring it
    return gpus, cpus


def _nodes() -> list[dict[str, Any]]:
    """The nodes that are alive."""
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in found if node["Alive"]]


def _get(reference: Any) -> Any:
    """`ray.get`, with what ncclean raised on the worker raised here as it was."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, NccleanError):
            raise cause from error
        raise


def _is_gone(node_id: str) -> bool:
    """Whether the node of a worker that just died is no longer part of the cluster."""
    deadline = time.monotonic() + 5 * _TICK_SECONDS
    while time.monotonic() < deadline:
        if node_id not in {node["NodeID"] for node in _nodes()}:
            return True
        time.sleep(_TICK_SECONDS / 2)
    return False


def _absolute(path: str) -> str:
    """Workers have other working directories."""
    return path if stores.is_url(path) else os.path.abspath(path)


def _absolute_task(task: ShardTask) -> ShardTask:
    shard = dataclasses.replace(task.shard, url=_absolute(task.shard.url))
    return dataclasses.replace(task, shard=shard)


def _absolute_writer(writer: PartWriter) -> PartWriter:
    embeddings = None if writer.embeddings is None else _absolute(writer.embeddings)
    return dataclasses.replace(writer, work=_absolute(writer.work), embeddings=embeddings)


def _absolute_model(request: ModelRequest) -> ModelRequest:
    model, pretrained = request.model, request.pretrained
    if model.startswith("local-dir:"):
        model = "local-dir:" + _absolute(model.removeprefix("local-dir:"))
    elif os.path.exists(model):
        model = _absolute(model)
    if pretrained is not None and os.path.exists(pretrained):
        pretrained = _absolute(pretrained)
    return dataclasses.replace(request, model=model, pretrained=pretrained)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
