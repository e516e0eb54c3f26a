"""The local engine: shard after shard through one estimator, reading ahead in threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from ncclean import schema
from ncclean.config import ScoreOptions
from ncclean.data.decode import ImageDecoder
from ncclean.data.shards import ShardRef
from ncclean.data.stream import ShardStream, StreamReader
from ncclean.errors import InputError, NccleanError
from ncclean.execution.task import ShardResult, score_shard
from ncclean.models.estimator import Estimator
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import ShardStats

logger = logging.getLogger(__name__)


class LocalEngine:
    """Scores shards in order in this process.

    A shard that cannot be scored becomes a result with an error; it never stops the others.
    """

    def __init__(self, estimator: Estimator, options: ScoreOptions) -> None:
        self.estimator = estimator
        self.options = options

    def run(
        self,
        shards: Sequence[ShardRef],
        on_result: Callable[[ShardRef, ShardResult], None],
        on_progress: Callable[[int], None] = lambda samples: None,
    ) -> None:
        """Hand every shard's result to `on_result`; tell `on_progress` samples done so far.

        What `on_result` raises ends the run: a full disk is not a property of a shard.
        """
        decoder = ImageDecoder(self.estimator.preprocessing)
        reader = StreamReader(
            shards,
            decoder,
            threads=self.options.decode_threads,
            prefetch=2 * self.options.batch_size,
            caption_key=self.options.caption_key,
        )
        finished = 0

        def report(samples: int) -> None:
            on_progress(finished + samples)

        with reader:
            for stream in reader:
                result = self._score(stream, report)
                finished += result.stats.rows
                on_result(stream.shard, result)

    def _score(self, stream: ShardStream, on_progress: Callable[[int], None]) -> ShardResult:
        try:
            return score_shard(stream, self.estimator, self.options, on_progress)
        except NccleanError:
            raise
        except torch.OutOfMemoryError as error:
            raise InputError(
                f"out of memory on {self.estimator.device} at --batch-size "
                f"{self.options.batch_size}; use a smaller one"
            ) from error
        except Exception as error:
            logger.debug("shard %s", stream.shard.name, exc_info=True)
            for _ in stream:  # what was read ahead of the failure must not block the reader
                pass
            return failed_result(f"{type(error).__name__}: {error}")


def failed_result(reason: str) -> ShardResult:
    """The result of a shard none of whose samples could be scored."""
    stats = ShardStats(0, {}, Histogram(), Histogram(), 0.0, reason)
    return ShardResult(schema.SCORES.empty_table(), stats, None)
