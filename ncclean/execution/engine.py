"""The engine that runs the shards of a job: this process or the workers of a Ray cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ncclean import stores
from ncclean.config import ScoreOptions
from ncclean.data.shards import ShardRef
from ncclean.execution.further_columns import FurtherColumns
from ncclean.execution.paths import absolute_model
from ncclean.execution.task import ShardResult
from ncclean.models.estimator import Estimator, ModelIdentity
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.calibration import Calibration
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.manifest import Manifest
from ncclean.storage.parts import write_embeddings, write_part


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """The model that scores, see `Estimator.load`."""

    model: str
    pretrained: str | None
    precision: str = "auto"
    device: str = "auto"
    compiled: bool = False
    space: str | None = None
    random_seed: int | None = None

    def load(self) -> Estimator:
        """Load it here. Raises `ModelError` if it cannot be."""
        return Estimator.load(
            self.model,
            self.pretrained,
            precision=self.precision,
            device=self.device,
            compiled=self.compiled,
            space=self.space,
            random_seed=self.random_seed,
        )

    def engine(self, options: ScoreOptions, further: FurtherColumns | None = None) -> Engine:
        """An engine that scores images in this process."""
        from ncclean.execution.local import LocalEngine

        return LocalEngine(self.load(), options, further)

    def absolute(self) -> ModelRequest:
        """The same with paths that a worker, whose working folder is another one, resolves."""
        return dataclasses.replace(
            self,
            model=absolute_model(self.model),
            pretrained=self.pretrained and absolute_model(self.pretrained),
        )


@dataclass(frozen=True, kw_only=True)
class EmbeddingRequest:
    """Embeddings to score: `identity` says what is known of their model, `dim` their width.

    `keys` are the names of image and caption vectors, see `ncclean.data.embeddings.units`; `model`
    is the one that made them, where it can be had.
    """

    identity: ModelIdentity
    keys: tuple[str, str] | None
    dim: int
    device: str = "auto"
    model: ModelRequest | None = None

    def engine(self, options: ScoreOptions, further: FurtherColumns | None = None) -> Engine:
        """An engine that scores embeddings in this process."""
        from ncclean.execution.embedded import EmbeddingEngine

        return EmbeddingEngine(self, options, further)

    def absolute(self) -> EmbeddingRequest:
        """The same with paths that a worker resolves."""
        return dataclasses.replace(self, model=self.model and self.model.absolute())


class EngineRequest(Protocol):
    """What it takes to open an engine, here or on a node."""

    @property
    def device(self) -> str:
        """Where it computes: `auto`, `cpu`, `cuda`."""
        ...

    def engine(self, options: ScoreOptions, further: FurtherColumns | None = None) -> Engine:
        """An engine in this process. Raises `ModelError` if its model cannot be loaded.

        `further` are the columns of the options, where they are loaded already.
        """
        ...

    def absolute(self) -> EngineRequest:
        """The same with paths that a worker, whose working folder is another one, resolves."""
        ...


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast an engine computes, reading left out, and on what."""

    pairs_per_second: float
    device: str
    precision: str
    embedding_dim: int


@dataclass(frozen=True)
class ShardTask:
    """One shard to score; `number` is its own in the run and names its embeddings."""

    number: int
    shard: ShardRef

    def absolute(self) -> ShardTask:
        """The same with paths that a worker resolves."""
        return dataclasses.replace(self, shard=self.shard.absolute())


@dataclass(frozen=True)
class ShardOutcome:
    """The result of a shard whose rows are written: all that a worker sends back."""

    stats: ShardStats
    distributions: Distributions


@dataclass(frozen=True)
class PartWriter:
    """Writes the rows and embeddings of a shard where they belong. Travels to the workers."""

    work: str
    embeddings: str | None
    digits: int

    def write(self, task: ShardTask, result: ShardResult) -> ShardOutcome:
        """Publish the part, after the embeddings: whoever sees a part may rely on them."""
        if self.embeddings is not None and result.embeddings is not None:
            embeddings = result.embeddings
            write_embeddings(
                stores.location(self.embeddings),
                f"{task.number:0{self.digits}d}",
                embeddings.image,
                embeddings.text,
                embeddings.metadata,
            )
        write_part(stores.location(self.work) / task.shard.part_name, result.table)
        return ShardOutcome(result.stats, result.distributions)


class Engine(Protocol):
    """Scores shards with one model. Results do not depend on which engine it is."""

    @property
    def identity(self) -> ModelIdentity:
        """The model that scores, loaded by now. Raises `ModelError` if it cannot be."""
        ...

    def run(
        self,
        tasks: Sequence[ShardTask],
        writer: PartWriter,
        on_done: Callable[[ShardRef, ShardOutcome], None],
        on_progress: Callable[[int], None] = lambda samples: None,
    ) -> None:
        """Score and write every shard; call `on_done` for each once it is written.

        A shard that cannot be scored has an outcome with an error and never stops the others. A
        failed write ends the run, and so does an exception of `on_done`.
        """
        ...

    def estimate_shift(self, seed: int, tolerance: float) -> float:
        """The estimator's cosine on noise, see `ncclean.scoring.osa.estimate_shift`."""
        ...

    def speed(self) -> Speed:
        """Measure how fast it computes here."""
        ...

    def finalize(self, layout: ScoreLayout, manifest: Manifest, calibration: Calibration) -> None:
        """Write the final table, see `ncclean.storage.finalize`."""
        ...

    def close(self) -> None:
        """Release the workers."""
        ...
