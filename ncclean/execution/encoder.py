"""The protocol of encoders, which turn the shards of a source into `EncodedShard`s."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ncclean.base.config import ScoreOptions
from ncclean.data.shards import ShardRef
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.device_faults import BatchSize
from ncclean.execution.encoded_shard import EncodedShard
from ncclean.execution.shift import NoiseShift
from ncclean.models.estimator import ModelIdentity

# The rest of a shard's encoding, to be called in another thread. Raises its errors.
Completion = Callable[[], EncodedShard]
Encoding = Generator[tuple[int, Completion], None, None]  # with the number of the shard
OnProgress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The measured speed of encoding and scoring without reading, and the device."""

    pairs_per_second: float
    device: str
    precision: str
    embedding_dim: int


class Encoder(Protocol):
    """Turns shards into embeddings with one model, one shard after the other."""

    @property
    def identity(self) -> ModelIdentity:
        """The model that the embeddings come from, with its fingerprint."""
        ...

    @property
    def device(self) -> str:
        """The device that computes the scores."""
        ...

    @property
    def batch(self) -> BatchSize:
        """The size of the encoder's batches, which shrinks if the device runs out of memory."""
        ...

    @property
    def facts(self) -> EncoderFacts:
        """The facts that column sources need of the encoder, such as the width."""
        ...

    @property
    def blocks_at_once(self) -> int:
        """The number of blocks to score at once: more than one if cores are idle."""
        ...

    def encode(self, shards: Sequence[ShardRef], on_progress: OnProgress) -> Encoding:
        """Encode shards; yield a function for each that completes it while others are read.

        Each comes with the shard's number, in any order. `on_progress` receives the number of
        samples so far.
        """
        ...

    def speed(self) -> Speed:
        """Measure the speed of encoding and scoring on one batch."""
        ...

    def estimate_shift(self, seed: int, tolerance: float) -> NoiseShift:
        """Return the model's mean cosine on noise, the boundary of OSA, with its spread.

        Raises `InputError` if no model is known.
        """
        ...


class EncoderRequest(Protocol):
    """A request to open an encoder, in this process or on a node of a cluster."""

    @property
    def device(self) -> str:
        """The device on which to compute: `auto`, `cpu` or `cuda`."""
        ...

    def result_options(self) -> Mapping[str, Any]:
        """Return the options that change the embeddings, besides the model and `ScoreOptions`."""
        ...

    def open(self, options: ScoreOptions, columns: ColumnSources) -> Encoder:
        """Load the model and open the encoder. Raises `ModelError` if it cannot be loaded."""
        ...

    def absolute(self) -> EncoderRequest:
        """Return the request with absolute paths, for a worker with another working folder."""
        ...
