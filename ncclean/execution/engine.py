"""The protocol of engines: this process, or the workers of a Ray cluster, score a run's shards.

An engine keeps a model loaded on each of its workers for the whole run. A command without a model,
whose tasks are plain functions, has a `ncclean.runners.runner.Runner` instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ncclean.base import stores
from ncclean.base.stores import absolute
from ncclean.data.fingerprints import as_metadata
from ncclean.data.shards import ShardRef
from ncclean.execution.encoder import OnProgress, Speed
from ncclean.execution.finish_shard import ShardResult
from ncclean.execution.shift import NoiseShift
from ncclean.models.estimator import ModelIdentity
from ncclean.runners.runner import Runner
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.parts import write_embeddings, write_part
from ncclean.storage.shard_records import ShardRecord


@dataclass(frozen=True)
class ShardTask:
    """A shard to score; `number` is its number in the run and names its embeddings."""

    number: int
    shard: ShardRef

    def absolute(self) -> ShardTask:
        """Return the task with absolute paths, for a worker with another working folder."""
        return dataclasses.replace(self, shard=self.shard.absolute())


@dataclass(frozen=True)
class ShardOutcome:
    """The answer of a worker that has written the rows of a shard: statistics and histograms."""

    stats: ShardStats
    distributions: Distributions


OnDone = Callable[[ShardRef, ShardOutcome], None]


@dataclass(frozen=True)
class PartWriter:
    """Writes the rows of a shard to its part, and its embeddings; sent to the workers."""

    work: str
    embeddings: str | None
    digits: int

    def write(self, task: ShardTask, result: ShardResult) -> ShardOutcome:
        """Write a shard's embeddings, then its part: a shard with a part has its embeddings."""
        if self.embeddings is not None and result.embeddings is not None:
            embeddings = result.embeddings
            encoded = result.stats.sources or {task.shard.name: task.shard.fingerprint}
            write_embeddings(
                stores.location(self.embeddings),
                f"{task.number:0{self.digits}d}",
                embeddings.image,
                embeddings.text,
                embeddings.metadata.replace_schema_metadata(as_metadata(encoded)),
            )
        shard = task.shard
        record = ShardRecord(
            shard.name, shard.size, shard.version, result.stats, result.distributions
        )
        write_part(stores.location(self.work) / shard.part_name, result.table, record)
        return ShardOutcome(result.stats, result.distributions)

    def absolute(self) -> PartWriter:
        """Return the writer with absolute paths, for a worker with another working folder."""
        embeddings = None if self.embeddings is None else absolute(self.embeddings)
        return dataclasses.replace(self, work=absolute(self.work), embeddings=embeddings)


class Engine(Protocol):
    """Scores shards with one model; results are the same for every engine."""

    @property
    def identity(self) -> ModelIdentity:
        """The model that scores, once it is loaded. Raises `ModelError` if it cannot be."""
        ...

    def run(
        self,
        tasks: Sequence[ShardTask],
        writer: PartWriter,
        on_done: OnDone,
        on_progress: OnProgress = lambda samples: None,
    ) -> None:
        """Score and write every shard; call `on_done` after each.

        A shard that cannot be scored has an outcome with an error and never stops the others. A
        failed write ends the run, as does an exception of `on_done`.
        """
        ...

    def estimate_shift(self, seed: int, tolerance: float) -> NoiseShift:
        """Return the estimator's mean cosine on noise, the boundary of OSA, with its spread."""
        ...

    def speed(self) -> Speed:
        """Measure how fast this machine scores."""
        ...

    def runner(self) -> Runner:
        """Return the runner of tasks without a model, such as writing the table."""
        ...

    def close(self) -> None:
        """Release the workers of the engine."""
        ...
