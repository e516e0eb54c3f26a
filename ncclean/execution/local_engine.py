"""The local engine: one shard after another through one encoder, in this process.

Three shards are in progress at a time: one is encoded, the previous one gets its columns and
scores, and the one before that is written.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import torch

from ncclean.base.config import ScoreOptions
from ncclean.base.progress import timed
from ncclean.errors import DeviceError, NccleanError, ShardError, one_line
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.corpus_facts import CorpusFacts
from ncclean.execution.device_faults import is_device_error
from ncclean.execution.encoder import Completion, Encoder, OnProgress, Speed
from ncclean.execution.engine import OnDone, PartWriter, ShardTask
from ncclean.execution.finish_shard import ShardResult, ShardScoring, failed_result
from ncclean.execution.shift import NoiseShift
from ncclean.models.estimator import ModelIdentity
from ncclean.runners.runner import InProcess, Runner
from ncclean.scoring.columns import MapBlocks

logger = logging.getLogger(__name__)


class LocalEngine:
    """Scores shards in order in this process.

    A shard that cannot be scored becomes a result with an error; it never stops the others. With
    `raises`, an error that the shard's own data does not explain is raised instead, as another
    worker may succeed. An error of the device always ends the run, as `DeviceError`. Raises
    `InputError` if a column cannot be computed from what the encoder provides.
    """

    def __init__(
        self,
        encoder: Encoder,
        options: ScoreOptions,
        columns: ColumnSources,
        *,
        raises: bool = False,
    ) -> None:
        columns.check(encoder.facts)
        self._raises = raises
        self.encoder = encoder
        self._options = options
        self._columns = columns
        self._corpus: CorpusFacts | None = None

    @property
    def identity(self) -> ModelIdentity:
        """The identity of the encoder's model."""
        return self.encoder.identity

    def run(
        self,
        tasks: Sequence[ShardTask],
        writer: PartWriter,
        on_done: OnDone,
        on_progress: OnProgress = lambda samples: None,
    ) -> None:
        """Score and write the shards in order, in this process."""
        if self._corpus is None:
            self._corpus = CorpusFacts.load(writer.work, self._options)

        def write(task: ShardTask, result: ShardResult) -> None:
            with timed(result.stats.times, "write"):
                outcome = writer.write(task, result)
            on_done(task.shard, outcome)

        with (
            self._scoring(self._corpus) as scoring,
            one_behind("ncclean-write") as write_behind,
            one_behind("ncclean-score") as score_behind,
            closing(self.encoder.encode([task.shard for task in tasks], on_progress)) as shards,
        ):

            def score(task: ShardTask, completion: Completion) -> None:
                write_behind(functools.partial(write, task, self._result(completion, scoring)))

            for number, completion in shards:
                score_behind(functools.partial(score, tasks[number], completion))

    def speed(self) -> Speed:
        """Measure the encoder's speed on one batch."""
        return self.encoder.speed()

    def estimate_shift(self, seed: int, tolerance: float) -> NoiseShift:
        """Return the mean cosine on noise of the encoder's model, with its spread."""
        return self.encoder.estimate_shift(seed, tolerance)

    def runner(self) -> Runner:
        """Return the runner of tasks in this process."""
        return InProcess()

    def close(self) -> None:
        """Do nothing: an engine in this process has no workers to release."""

    @contextmanager
    def _scoring(self, corpus: CorpusFacts) -> Iterator[ShardScoring]:
        """Return the scoring that finishes shards, several blocks at once if that is faster."""
        scoring = ShardScoring(
            options=self._options,
            columns=self._columns,
            encoder=dataclasses.replace(self.encoder.facts, corpus=corpus),
            scale=self.identity.scale,
            device=self.encoder.device,
        )
        if self.encoder.blocks_at_once < 2:
            yield scoring
            return
        with ThreadPoolExecutor(
            self.encoder.blocks_at_once, "ncclean-blocks", torch.set_num_threads, (1,)
        ) as pool:
            each_block: MapBlocks = pool.map
            yield dataclasses.replace(scoring, each_block=each_block)

    def _result(self, completion: Completion, scoring: ShardScoring) -> ShardResult:
        def finish(batch_size: int) -> ShardResult:
            facts = dataclasses.replace(scoring.encoder, batch_size=batch_size)
            return dataclasses.replace(scoring, encoder=facts).finish(completion())

        try:
            return self.encoder.batch.fit(finish)
        except ShardError as error:
            return failed_result(str(error), self._columns, error)
        except NccleanError:
            raise
        except Exception as error:
            if is_device_error(error):
                advice = "; what is done is kept: give the same command again, or another --device"
                reason = f"{self.encoder.device} failed ({one_line(error)})"
                raise DeviceError(reason if self._raises else reason + advice) from error
            if self._raises:
                raise
            logger.debug("a shard failed", exc_info=True)
            return failed_result(f"{type(error).__name__}: {error}", self._columns, error)


@contextmanager
def one_behind(name: str) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Yield a function that runs calls in a background thread, one at a time.

    A call waits for the previous one, so memory and the loss by a crash stay small. An error of a
    call is raised at the next one, or at the end.
    """
    last: Future[None] | None = None

    def submit(call: Callable[[], None]) -> None:
        nonlocal last
        if last is not None:
            last.result()
        last = pool.submit(call)

    with ThreadPoolExecutor(1, name) as pool:
        yield submit
        if last is not None:
            last.result()
