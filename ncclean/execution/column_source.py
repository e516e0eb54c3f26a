"""The protocol of further columns, with one class for each kind."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import torch

from ncclean.base.config import ScoreOptions
from ncclean.columns import PairBatch
from ncclean.execution.corpus_facts import CorpusFacts
from ncclean.execution.encoded_shard import EncodedShard, Values
from ncclean.models.estimator import Estimator
from ncclean.scoring.columns import BlockScores
from ncclean.scoring.stats import ColumnFailures


@dataclass(frozen=True, kw_only=True)
class EncoderFacts:
    """The facts that column sources read of the encoder that embeds the pairs.

    `dim` is the width of its embeddings; `estimator` the model that also encodes other captions,
    None when embeddings are scored; `corpus` the facts gathered by a pass over all embeddings.
    """

    dim: int
    estimator: Estimator | None = None
    batch_size: int = 256
    corpus: CorpusFacts = field(default_factory=CorpusFacts)


class ColumnSource(Protocol):
    """A source of further columns of the score table, such as `--signals` or `--words`."""

    flag: ClassVar[str]  # the command-line option for it
    options: ClassVar[tuple[str, ...]]  # options that `identity` describes better than their values
    follows_scores: ClassVar[bool]  # whether it needs the scores of the shard's blocks

    @classmethod
    @abstractmethod
    def of(cls, options: ScoreOptions) -> ColumnSource | None:
        """Return the source of the further columns that the options request, or None.

        Raises `InputError` if something it needs cannot be loaded.
        """
        ...

    @property
    @abstractmethod
    def types(self) -> Mapping[str, pa.DataType]:
        """The names and Arrow types of the source's columns, in order."""
        ...

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return the versions that the source's values depend on, as JSON, by option."""
        ...

    def check(self, encoder: EncoderFacts) -> None:
        """Raise `InputError` if the columns cannot be computed from what the encoder provides."""

    def further_texts(self, captions: Sequence[str], encoder: EncoderFacts) -> Sequence[str]:
        """Return texts to encode in addition to these captions, at the same cost."""
        return ()

    def of_batch(self, batch: PairBatch, failures: ColumnFailures) -> Values:
        """Return (n,) column values of a batch, for sources that need the decoded images."""
        return {}

    def of_shard(
        self, shard: EncodedShard, encoder: EncoderFacts, scores: BlockScores | None
    ) -> Values:
        """Return (m,) column values of a shard's pairs, for sources that need embeddings or scores.

        `scores` are those of the shard if the source needs them, else None.
        """
        return {}


def arrow_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Convert values of any kind to an Arrow array of a type. Raises Arrow's errors."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values.cast(kind)
    return pa.array(values, kind)
