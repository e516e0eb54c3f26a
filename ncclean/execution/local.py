"""The local engine: shard after shard through one estimator, reading ahead in threads."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch

from ncclean.config import ScoreOptions
from ncclean.data.decode import ImageDecoder
from ncclean.data.device_decode import DeviceImageDecoder
from ncclean.data.shards import ShardRef
from ncclean.data.stream import StreamReader
from ncclean.errors import InputError, NccleanError
from ncclean.execution.allocator import keep_freed_memory
from ncclean.execution.engine import PartWriter, ShardOutcome, ShardTask, Speed
from ncclean.execution.further_columns import FurtherColumns
from ncclean.execution.in_process import InProcessEngine, one_behind
from ncclean.execution.shift import noise_shift
from ncclean.execution.task import (
    EmbeddedShard,
    ShardResult,
    embed_images,
    failed_result,
    finish_shard,
)
from ncclean.models.estimator import Estimator, ModelIdentity

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class LocalEngine(InProcessEngine):
    """Scores shards in order in this process.

    A shard that cannot be scored becomes a result with an error; it never stops the others.
    """

    def __init__(
        self, estimator: Estimator, options: ScoreOptions, further: FurtherColumns | None = None
    ) -> None:
        self.estimator = estimator
        self.options = options
        self._further = further or FurtherColumns(options)
        self._further.check_dim(estimator.embed_dim)

    @property
    def identity(self) -> ModelIdentity:
        """The model of the estimator."""
        return self.estimator.identity

    def run(
        self,
        tasks: Sequence[ShardTask],
        writer: PartWriter,
        on_done: Callable[[ShardRef, ShardOutcome], None],
        on_progress: Callable[[int], None] = lambda samples: None,
    ) -> None:
        """Score the shards in order; see `Engine.run`."""
        keep_freed_memory()
        reader = StreamReader(
            [task.shard for task in tasks],
            self._decoder(),
            threads=self.options.decode_threads,
            prefetch=2 * self.options.batch_size,
            caption_key=self.options.caption_key,
        )
        finished = 0

        def report(samples: int) -> None:
            on_progress(finished + samples)

        def finish(task: ShardTask, embedded: EmbeddedShard | ShardResult) -> None:
            if isinstance(embedded, EmbeddedShard):
                embedded = self._guarded(finish_shard, embedded, *self._with)
            on_done(task.shard, writer.write(task, embedded))

        # Captions, statistics and writing of one shard go on while the next one's images are
        # encoded.
        with reader, one_behind() as finish_behind:
            for task, stream in zip(tasks, reader, strict=True):
                embedded = self._guarded(embed_images, stream, *self._with, report)
                for _ in stream:  # what was read ahead of a failure must not block the reader
                    pass
                finished += len(embedded.samples) if isinstance(embedded, EmbeddedShard) else 0
                finish_behind(functools.partial(finish, task, embedded))

    def speed(self) -> Speed:
        """Measure one batch of images."""
        size = self.options.batch_size
        return Speed(
            pairs_per_second=size / self.estimator.seconds_per_batch(size),
            device=str(self.estimator.device),
            precision=self.estimator.precision,
            embedding_dim=self.estimator.embed_dim,
        )

    def estimate_shift(self, seed: int, tolerance: float) -> float:
        """The estimator's cosine on noise."""
        return noise_shift(self.estimator, seed, tolerance)

    def _decoder(self) -> ImageDecoder:
        preprocessing, device = self.estimator.preprocessing, self.estimator.device
        if self.options.decode_on == "device":
            return DeviceImageDecoder(preprocessing, device, self.options.max_pixels)
        return ImageDecoder(
            preprocessing,
            self.options.max_pixels,
            signals=self._further.has_image_signals,
            draft=self.options.draft,
        )

    @property
    def _with(self) -> tuple[Estimator, ScoreOptions, FurtherColumns]:
        return self.estimator, self.options, self._further

    def _guarded(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | ShardResult:
        """The result of `work`, or that of a shard that failed."""
        try:
            return work(*args, **kwargs)
        except NccleanError:
            raise
        except torch.OutOfMemoryError as error:
            raise InputError(
                f"out of memory on {self.estimator.device} at --batch-size "
                f"{self.options.batch_size}; use a smaller one"
            ) from error
        except Exception as error:
            logger.debug("a shard failed", exc_info=True)
            return failed_result(f"{type(error).__name__}: {error}", self._further)
