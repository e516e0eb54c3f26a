"""Run one scoring run on the workers of a cluster: where each shard is, and its outcome.

A shard's reference is sent to a worker, which returns its statistics; workers read shards and write
parts themselves. Each worker has two shards, so that it reads one while computing the other. This
module decides what to do with a shard whose worker failed or died.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayTaskError

from ncclean.base import stores
from ncclean.data.shards import ShardRef
from ncclean.errors import DeviceError, InputError
from ncclean.execution.encoder import OnProgress
from ncclean.execution.engine import OnDone, PartWriter, ShardOutcome, ShardTask
from ncclean.execution.finish_shard import failed_result
from ncclean.execution.ray_workers import SHARDS_PER_WORKER, Call, Worker, WorkerPool
from ncclean.runners.ray_cluster import one_line

logger = logging.getLogger(__name__)

# A shard fails for good when two different workers, or the only one three times, failed it.
_WORKERS_FAILED = 2
_ATTEMPTS = 3
# The loss of a node is known some seconds after that of its workers.
_GONE_SECONDS = 5.0
# A shard goes to a second worker if nothing else is left and it has taken this long.
STRAGGLER_FACTOR = 3.0
STRAGGLER_SECONDS = 30.0


class ShardRun:
    """Distributes the shards of a run over the workers of a pool, with retries.

    `names` are the caller's names of the shards in `tasks`.
    """

    def __init__(
        self,
        pool: WorkerPool,
        tasks: Sequence[ShardTask],
        names: Sequence[ShardRef],
        writer: PartWriter,
        on_done: OnDone,
        on_progress: OnProgress,
    ) -> None:
        self._pool = pool
        self._writer = writer
        self._on_done = on_done
        self._on_progress = on_progress
        self._waiting = deque(tasks)
        self._names = {task.number: name for task, name in zip(tasks, names, strict=True)}
        self._suspects: deque[ShardTask] = deque()  # failed once; each runs alone, at the end
        self._left = {task.number for task in tasks}
        self._failed_on: defaultdict[int, list[str]] = defaultdict(list)
        # Shards that were alone on a worker that died, whose node may have left.
        self._dead: list[tuple[float, Call, ShardTask, Exception]] = []
        self._seconds: list[float] = []  # sorted
        self._samples = 0

    def until_done(self) -> None:
        """Wait until every shard is scored or has failed for good.

        Raises errors that end the run.
        """
        while self._left:
            self._assign()
            self._fit_workers()
            for call, answer in self._pool.answers():
                if call.task is not None and call.task.number in self._left:
                    self._settle(call, call.task, answer)
            self._judge_the_dead()
            self._on_progress(self._samples)

    def _fit_workers(self) -> None:
        """Start workers for waiting shards; at the run's end, release all idle ones but one."""
        busy = [worker for worker in self._pool.usable if worker.running]
        waiting = len(self._waiting) + len(self._suspects) + len(self._dead)
        if not waiting:
            idle = [worker for worker in self._pool.usable if not worker.running]
            idle.sort(key=lambda worker: worker.loaded is None)
            for worker in idle[1:]:
                self._pool.release(worker)
        self._pool.grow(len(busy) + waiting)

    def _assign(self) -> None:
        for depth in range(SHARDS_PER_WORKER):
            for worker in self._pool.ready:
                if len(worker.running) != depth or any(call.alone for call in worker.running):
                    continue
                if self._waiting:
                    self._submit(worker, self._waiting.popleft())
                elif depth == 0 and (suspect := self._suspect_for(worker)) is not None:
                    self._submit(worker, suspect, alone=True)
                elif depth == 0 and (straggler := self._straggler()) is not None:
                    self._submit(worker, straggler)

    def _suspect_for(self, worker: Worker) -> ShardTask | None:
        """Return a failed shard that no other worker could judge better."""
        for task in list(self._suspects):
            if task.number not in self._left:  # another worker was quicker
                self._suspects.remove(task)
                continue
            others = [one for one in self._pool.ready if not self._has_failed(one, task)]
            healthy = [one for one in others if self._pool.is_healthy(one)]
            if worker in (healthy or others or [worker]):
                self._suspects.remove(task)
                return task
        return None

    def _has_failed(self, worker: Worker, task: ShardTask) -> bool:
        return bool({worker.name, str(worker.place)} & set(self._failed_on[task.number]))

    def _straggler(self) -> ShardTask | None:
        """Return a shard that takes far longer than the others, and is on a single worker."""
        if not self._seconds:
            return None
        median = self._seconds[len(self._seconds) // 2]
        patience = max(STRAGGLER_SECONDS, STRAGGLER_FACTOR * median)
        running = [call for call in self._pool.calls.values() if call.task is not None]
        copies = Counter(call.task for call in running)
        late = time.monotonic() - patience
        return next(
            (c.task for c in running if copies[c.task] == 1 and c.since < late and not c.alone),
            None,
        )

    def _submit(self, worker: Worker, task: ShardTask, alone: bool = False) -> None:
        self._pool.call(worker, "score", task, self._writer, task=task, alone=alone)

    def _settle(self, call: Call, task: ShardTask, answer: Any) -> None:
        if isinstance(answer, ShardOutcome):
            bisect.insort(self._seconds, time.monotonic() - call.since)
            self._done(task, answer)
        elif answer is None:
            self._waiting.appendleft(task)
        elif isinstance(answer, DeviceError):  # a new process on the device would do no better
            self._blame(call, task, str(call.worker.place), answer)
        elif isinstance(answer, RayTaskError):
            self._blame(call, task, call.worker.name, answer)
        elif call.alone:
            self._dead.append((time.monotonic(), call, task, answer))
        else:
            self._suspects.append(task)

    def _judge_the_dead(self) -> None:
        """Blame a shard that was alone on a worker that died, unless the node has left."""
        nodes, now = self._pool.watch.nodes(), time.monotonic()
        for entry in list(self._dead):
            since, call, task, error = entry
            has_left = call.worker.place is not None and call.worker.place.node not in nodes
            if not has_left and now - since < _GONE_SECONDS:
                continue
            self._dead.remove(entry)
            if has_left:
                self._suspects.append(task)
            elif task.number in self._left:
                self._blame(call, task, call.worker.name, error)

    def _blame(self, call: Call, task: ShardTask, worker: str, error: Exception) -> None:
        """Note that a shard failed on a worker; retry on another, unless two have failed."""
        failed_on = self._failed_on[task.number]
        failed_on.append(worker)
        if len(set(failed_on)) < _WORKERS_FAILED and len(failed_on) < _ATTEMPTS:
            self._suspects.append(task)
            return
        reason = f"{one_line(error, last=3)} (on {len(set(failed_on))} workers, last {call.worker})"
        self._done(task, self._writer.write(task, failed_result(reason, self._pool.columns)))

    def _done(self, task: ShardTask, outcome: ShardOutcome) -> None:
        self._left.discard(task.number)
        part = stores.location(self._writer.work) / task.shard.part_name
        if not stores.is_url(part) and not part.exists():
            raise InputError(
                f"a worker has written {part}, but it is not there for this machine: give --out a "
                "folder that all nodes share, or an object store"
            )
        self._samples += outcome.stats.rows
        self._on_done(self._names[task.number], outcome)
