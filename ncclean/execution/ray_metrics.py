"""Expose a Ray worker's work: Ray's metrics, and the log of its process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from ray.util.metrics import Counter

from ncclean.data.shards import ShardRef
from ncclean.execution.engine import ShardOutcome

logger = logging.getLogger(__name__)


class WorkerMetrics:
    """Counts the work of one worker of a Ray cluster, as Ray metrics.

    Ray adds the node to each metric. Messages go to the log of the worker's process, with the
    worker and its node; each retry of a store access is logged and counted.
    """

    def __init__(self, worker: str, place: str) -> None:
        logging.basicConfig(
            format=f"%(asctime)s %(levelname)s %(name)s [{worker}, {place}] %(message)s",
            level=logging.WARNING,
        )
        tags = {"worker": worker}

        def counter(name: str, description: str, *keys: str) -> Counter:
            metric = Counter(f"ncclean_{name}", description, ("worker", *keys))
            metric.set_default_tags(tags)
            return metric

        self._pairs = counter("pairs_total", "Pairs in the parts of finished shards.")
        self._bytes = counter("bytes_total", "Bytes of finished shards.")
        self._seconds = counter("seconds_total", "Seconds by phase of the work.", "phase")
        self._failures = counter("failures_total", "Failed shards by reason.", "reason")
        retries = counter("retries_total", "Retries of accesses to a store.")
        logging.getLogger("ncclean.base.stores").addHandler(_Counting(retries))

    @contextlib.contextmanager
    def of_shard(self, shard: ShardRef, outcomes: Sequence[ShardOutcome]) -> Iterator[None]:
        """Count the shard scored in this context, whose outcome is in `outcomes` at its end."""
        try:
            yield
        except Exception as error:
            self._failures.inc(1, {"reason": type(error).__name__})
            logger.exception("shard %s failed", shard.name)
            raise
        stats = outcomes[0].stats
        self._count(self._pairs, stats.rows)
        self._count(self._bytes, shard.size)
        for phase, seconds in stats.times.items():
            self._count(self._seconds, seconds, phase=phase)
        if stats.error is not None:
            self._failures.inc(1, {"reason": "ShardError"})
            logger.warning("shard %s failed: %s", shard.name, stats.error)

    @staticmethod
    def _count(counter: Counter, value: float, **tags: str) -> None:
        if value > 0:  # Ray rejects increments of 0
            counter.inc(value, tags)


class _Counting(logging.Handler):
    """Counts logged messages."""

    def __init__(self, counter: Counter) -> None:
        super().__init__(logging.WARNING)
        self._counter = counter

    def emit(self, record: logging.LogRecord) -> None:
        self._counter.inc(1)
