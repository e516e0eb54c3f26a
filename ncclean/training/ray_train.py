"""Train on a Ray cluster: Ray Train starts, joins and restarts the ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from ncclean.base.config import ClusterOptions
from ncclean.errors import NccleanError, TrainingError
from ncclean.runners.ray_cluster import Watch, connect, one_line, room, worker_size

_POLL_SECONDS = 0.5
_AGREE_SECONDS = 10.0
_RESTARTS = 3

Report = Callable[[Any], None]


@ray.remote(num_cpus=0)
class _Board:
    """Holds the reports of the first rank, and the error of any rank that ends the run."""

    def __init__(self) -> None:
        self._reports: list[Any] = []
        self._result: Any = None
        self._error: NccleanError | None = None
        self._failed = 0

    def report(self, report: Any) -> None:
        self._reports.append(report)

    def finish(self, result: Any) -> None:
        self._result = result

    def fail(self, error: NccleanError) -> None:
        self._error = self._error or error
        self._failed += 1

    def failed(self) -> int:
        return self._failed

    def take(self) -> list[Any]:
        taken, self._reports = self._reports, []
        return taken

    def ending(self) -> tuple[Any, NccleanError | None]:
        return self._result, self._error


@dataclass(frozen=True)
class RankJob:
    """A training job for Ray: calls `train(request, report)` on every rank.

    The first rank's result is that of the run. When called again, `train` must resume from its
    newest checkpoint: if a rank dies, or its node leaves, all are restarted, three times at most.
    """

    train: Callable[[Any, Report], Any]
    request: Any
    board: Any = field(default=None)

    def __call__(self) -> None:
        _, error = ray.get(self.board.ending.remote())
        if error is not None:  # a restart would fail in the same way
            return
        first = ray.train.get_context().get_world_rank() == 0

        def report(step: Any) -> None:
            if first:
                self.board.report.remote(step)

        try:
            result = self.train(self.request, report)
        except NccleanError as error:
            ray.get(self.board.fail.remote(error))
            if not self._all_failed():  # the others wait for this rank: only a restart ends that
                raise
            return
        if first:
            ray.get(self.board.finish.remote(result))

    def _all_failed(self) -> bool:
        """Check whether all ranks raised an error of ncclean, which a restart would not change."""
        deadline = time.monotonic() + _AGREE_SECONDS
        while time.monotonic() < deadline:
            failed: int = ray.get(self.board.failed.remote())
            if failed >= ray.train.get_context().get_world_size():
                return True
            time.sleep(_POLL_SECONDS)
        return False


def train_on_cluster(
    train: Callable[[Any, Report], Any],
    request: Any,
    *,
    cluster: ClusterOptions,
    device: str,
    folder: str,
    on_report: Report = lambda report: None,
) -> Any:
    """Run `train` on every rank under Ray Train; return the first rank's result.

    `folder` is for Ray Train's state; all nodes must see it. Raises the ranks' error if it is one
    of ncclean, else `TrainingError`.
    """
    connected = connect(cluster.address)
    try:
        gpus, cpus = worker_size(cluster, device)
        needs = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
        board = _Board.remote()  # type: ignore[attr-defined]
        trainer = TorchTrainer(
            RankJob(train, request, board),
            scaling_config=ScalingConfig(
                num_workers=cluster.workers or room(Watch().nodes().values(), needs),
                use_gpu=gpus > 0,
                resources_per_worker=needs,
            ),
            run_config=RunConfig(
                name="run",
                storage_path=folder,
                failure_config=FailureConfig(max_failures=_RESTARTS),
            ),
        )
        stop = threading.Event()
        pump = threading.Thread(target=_pump, args=(board, on_report, stop), daemon=True)
        pump.start()
        failure: Exception | None = None
        try:
            trainer.fit()
        except ray.train.TrainingFailedError as error:
            failure = error
        finally:
            stop.set()
            pump.join()
        result, raised = ray.get(board.ending.remote())
        if raised is not None:
            raise raised from failure
        if failure is not None:
            raise TrainingError(
                f"the training failed on the cluster: {one_line(failure)}"
            ) from failure
        return result
    finally:
        if connected:
            ray.shutdown()


def _pump(board: Any, on_report: Report, stop: threading.Event) -> None:
    """Pass on reports as they arrive."""
    while True:
        last = stop.wait(_POLL_SECONDS)
        for report in ray.get(board.take.remote()):
            on_report(report)
        if last:
            return
