"""The Ray engine: shards on the workers of a cluster, with one loaded estimator on each.

`ray_workers` holds the workers, `ray_shards` assigns shards to them, `ray_cluster` connects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import ray

from ncclean.base.config import ClusterOptions, ScoreOptions
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.encoder import EncoderRequest, OnProgress, Speed
from ncclean.execution.engine import OnDone, PartWriter, ShardTask
from ncclean.execution.ray_shards import ShardRun
from ncclean.execution.ray_workers import WorkerPool
from ncclean.execution.shift import NoiseShift
from ncclean.models.estimator import ModelIdentity
from ncclean.runners.ray_cluster import connect, worker_size
from ncclean.runners.ray_runner import RayTasks
from ncclean.runners.runner import Runner


class RayEngine:
    """Scores shards on a Ray cluster. Closing it releases the workers.

    Raises `InputError` if there is no cluster at the address. If no node is large enough for a
    worker, it says so and waits: an autoscaler may add one.
    """

    def __init__(
        self,
        request: EncoderRequest,
        options: ScoreOptions,
        columns: ColumnSources,
        cluster: ClusterOptions | None = None,
    ) -> None:
        for module in columns.modules:  # the nodes need not have them
            ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        self._cluster = cluster or ClusterOptions()
        self._connected = connect(self._cluster.address)
        gpus, cpus = worker_size(self._cluster, request.device)
        self._pool = WorkerPool(
            request.absolute(),
            dataclasses.replace(
                options, decode_threads=self._cluster.decoders_per_worker or max(1, int(cpus))
            ),
            columns,
            gpus=gpus,
            cpus=cpus,
            wanted=self._cluster.workers,
        )

    @property
    def identity(self) -> ModelIdentity:
        """The model's identity, from the first worker that has loaded it. Raises `ModelError`."""
        return self._pool.identity or self._pool.load()

    def estimate_shift(self, seed: int, tolerance: float) -> NoiseShift:
        """Return the estimator's mean cosine on noise, with its spread, computed by one worker."""
        shift: NoiseShift = self._pool.on_any("estimate_shift", seed, tolerance)
        return shift

    def speed(self) -> Speed:
        """Measure the speed of one worker of the cluster."""
        speed: Speed = self._pool.on_any("speed")
        return speed

    def run(
        self,
        tasks: Sequence[ShardTask],
        writer: PartWriter,
        on_done: OnDone,
        on_progress: OnProgress = lambda samples: None,
    ) -> None:
        """Score and write the shards on the workers, in any order."""
        run = ShardRun(
            self._pool,
            [task.absolute() for task in tasks],
            [task.shard for task in tasks],
            writer.absolute(),
            on_done,
            on_progress,
        )
        run.until_done()

    def runner(self) -> Runner:
        """Return a runner of tasks on the cluster, after releasing its workers and their cores."""
        self._pool.release_all()
        return RayTasks(self._cluster.address, None)

    def close(self) -> None:
        """Stop the workers, and Ray if this engine started it."""
        self._pool.release_all()
        if self._connected:
            ray.shutdown()
            self._connected = False
