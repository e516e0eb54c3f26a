"""One scoring run on the workers of a cluster: which shard is where, and its outcome.

A shard's reference travels to a worker and its statistics travel back; workers read shards and
write parts themselves. Two shards are kept on each worker, so that one is read while the other is
computed. Ray restarts workers; this module decides what to do with a shard whose worker died.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayError

from ncclean import stores
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ModelError
from ncclean.execution.encoder import OnProgress
from ncclean.execution.engine import OnDone, PartWriter, ShardOutcome, ShardTask
from ncclean.execution.finish_shard import failed_result
from ncclean.execution.ray_workers import SHARDS_PER_WORKER, Call, Worker, WorkerPool
from ncclean.models.estimator import ModelIdentity
from ncclean.runners.ray_cluster import TICK_SECONDS, check_own_node, get, is_gone, one_line

logger = logging.getLogger(__name__)

# A shard that was alone on its worker when it died this many times is set aside as failed.
_DEATHS_ALLOWED = 2
# A shard is given to a second worker when nothing else is left and it has taken this long.
STRAGGLER_FACTOR = 3.0
STRAGGLER_SECONDS = 30.0


class ShardRun:
    """Scores `tasks` on the workers of a pool; `names` are the shards as the caller knows them."""

    def __init__(
        self,
        pool: WorkerPool,
        expected: ModelIdentity,
        tasks: Sequence[ShardTask],
        names: Sequence[ShardRef],
        writer: PartWriter,
        on_done: OnDone,
        on_progress: OnProgress,
    ) -> None:
        self._pool = pool
        self._expected = expected
        self._writer = writer
        self._on_done = on_done
        self._on_progress = on_progress
        self._waiting = deque(tasks)
        self._names = {task.number: name for task, name in zip(tasks, names, strict=True)}
        self._suspects: deque[ShardTask] = deque()  # were on a worker that died; now run alone
        self._left = {task.number for task in tasks}
        self._deaths: Counter[int] = Counter()
        self._calls: dict[Any, Call] = {}
        self._questions: dict[Any, Worker] = {}  # on which node a worker runs
        self._seconds: list[float] = []
        self._samples = 0

    def until_done(self) -> None:
        """Wait until every shard is scored or has failed for good. Raises what ends the run."""
        while self._left:
            self._pool.grow_now_and_then()
            self._assign()
            pending = [*self._calls, *self._questions]
            if not pending:
                time.sleep(TICK_SECONDS)
                continue
            ready = ray.wait(pending, timeout=TICK_SECONDS)[0]
            if not ready:
                check_own_node()
            for reference in ready:
                if reference in self._questions:
                    self._learn_node(reference)
                else:
                    self._settle(reference)
            self._on_progress(self._samples)

    def _assign(self) -> None:
        usable = self._pool.usable
        for worker in usable:
            if worker.node is None and worker not in self._questions.values():
                self._questions[worker.handle.node.remote()] = worker
        for depth in range(SHARDS_PER_WORKER):
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
        patience = max(STRAGGLER_SECONDS, STRAGGLER_FACTOR * statistics.median(self._seconds))
        copies = Counter(call.task.number for call in self._calls.values())
        now = time.monotonic()
        for call in self._calls.values():
            if copies[call.task.number] == 1 and now - call.since > patience and not call.alone:
                return call.task
        return None

    def _learn_node(self, reference: Any) -> None:
        worker = self._questions.pop(reference)
        try:
            worker.node = ray.get(reference)
            self._pool.silence.answered()
        except RayError as error:
            self._pool.silence.died(error)

    def _submit(self, worker: Worker, task: ShardTask, alone: bool = False) -> None:
        assert worker.node is not None
        reference = worker.handle.score.remote(task, self._writer, self._expected)
        call = Call(worker, task, worker.node, time.monotonic(), alone)
        self._calls[reference] = worker.running[reference] = call

    def _settle(self, reference: Any) -> None:
        call = self._calls.pop(reference)
        del call.worker.running[reference]
        try:
            outcome = get(reference)
        except ModelError as error:
            if call.worker.is_usable:
                self._pool.park(call.worker, error)
            self._again(call.task)
        except (RayActorError, ObjectLostError) as error:
            # Large statistics stay in the store of the worker's node and are lost with it.
            self._worker_died(call, error)
        except RayError as error:
            self._finish(call.task, f"{type(error).__name__}: {error}".splitlines()[0])
        else:
            self._seconds.append(time.monotonic() - call.since)
            self._done(call.task, outcome)

    def _worker_died(self, call: Call, error: RayActorError | ObjectLostError) -> None:
        number = call.task.number
        call.worker.node = None  # Ray may restart it elsewhere
        check_own_node()
        if number not in self._left:
            return
        if is_gone(call.node):
            logger.warning("a node left; shard %s is scored again", call.task.shard.name)
            self._again(call.task)
            return
        self._deaths[number] += 1 if call.alone else 0
        logger.warning("the worker of shard %s died: %s", call.task.shard.name, one_line(error))
        if self._deaths[number] >= _DEATHS_ALLOWED:
            self._finish(call.task, f"its worker died {_DEATHS_ALLOWED} times: {one_line(error)}")
        elif number not in {task.number for task in self._suspects}:
            self._suspects.append(call.task)

    def _again(self, task: ShardTask) -> None:
        if task.number in self._left:
            self._waiting.appendleft(task)

    def _finish(self, task: ShardTask, reason: str) -> None:
        """The shard failed for good: it gets an empty part, as from the local engine."""
        self._done(task, self._writer.write(task, failed_result(reason, self._pool.columns)))

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
