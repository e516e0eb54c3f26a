"""Columns besides the scores: functions, heads, signals, words and canonical similarity.

Each is a `ColumnSource`; a new one is a class and a line in `SOURCES`. They have values for the
scorable pairs. A value that cannot be computed is null and counted; it costs neither the pair's
scores nor the shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ncclean.base import schema
from ncclean.base.config import ScoreOptions
from ncclean.columns import PairBatch
from ncclean.errors import InputError
from ncclean.execution.column_source import ColumnSource, EncoderFacts
from ncclean.execution.encoded_shard import EncodedShard, Values
from ncclean.execution.part_columns import PartColumns
from ncclean.execution.signal_columns import HeadColumns, ImageSignals, LanguageColumns, TextColumns
from ncclean.execution.user_columns import UserColumns
from ncclean.execution.word_checks import WordChecks
from ncclean.scoring.canonical import halves
from ncclean.scoring.columns import BlockScores
from ncclean.scoring.stats import ColumnFailures


class CanonicalColumn(ColumnSource):
    """The column `canonical_similarity`; null if a half of the corpus was too small."""

    flag = "--canonical"
    options = ()
    follows_scores = False
    types: Mapping[str, pa.DataType] = {schema.CANONICAL.name: schema.CANONICAL.type}

    @classmethod
    def of(cls, options: ScoreOptions) -> CanonicalColumn | None:
        """Return the column source of `--canonical`, None without it."""
        return cls() if options.canonical else None

    def identity(self) -> Mapping[str, Any]:
        """Return nothing: the column depends only on ncclean's version."""
        return {}

    def of_shard(
        self, shard: EncodedShard, encoder: EncoderFacts, scores: BlockScores | None
    ) -> Values:
        """Return (m,) cosines in the directions that both sides of the other half share."""
        projections = encoder.corpus.projections
        if projections is None:
            return {}
        image, text = shard.image.numpy(), shard.text.numpy()
        cosines = np.empty(len(image), np.float32)
        half = halves(shard.of_pairs("shard"), np.array(shard.of_pairs("row"), np.int32))
        for projection, rows in zip(projections, (~half, half), strict=True):
            cosines[rows] = projection.cosines(image[rows], text[rows])
        return {schema.CANONICAL.name: pa.array(cosines)}


# In the order of the table's columns.
SOURCES: tuple[type[ColumnSource], ...] = (
    UserColumns,
    HeadColumns,
    ImageSignals,
    LanguageColumns,
    TextColumns,
    PartColumns,
    WordChecks,
    CanonicalColumn,
)


class ColumnSources:
    """All sources of further columns of a run; sent to workers with everything they need.

    Raises `InputError` for anything that cannot be loaded, and for taken names.
    """

    def __init__(self, options: ScoreOptions) -> None:
        self.sources = [s for kind in SOURCES if (s := kind.of(options)) is not None]
        self.types: dict[str, pa.DataType] = {}
        for source in self.sources:
            for name, type_ in source.types.items():
                if name.lower() in schema.SCORES.names or name in self.types:
                    raise InputError(f"{source.flag}: the table has a column {name} already")
                self.types[name] = type_

    @property
    def fields(self) -> list[pa.Field]:
        """The Arrow fields of all further columns, in order."""
        return [pa.field(name, kind) for name, kind in self.types.items()]

    @property
    def modules(self) -> list[Any]:
        """The modules of users' functions, which are sent to the nodes of a cluster."""
        return [m for s in self.sources if isinstance(s, UserColumns) for m in s.modules]

    @property
    def wants_batches(self) -> bool:
        """Whether a source computes its columns batch by batch, from decoded images."""
        return any(type(source).of_batch is not ColumnSource.of_batch for source in self.sources)

    def identity(self) -> dict[str, Any]:
        """Return versions on which the further columns depend, by option; None if not given."""
        identity: dict[str, Any] = {name: None for kind in SOURCES for name in kind.options}
        for source in self.sources:
            for name, value in source.identity().items():  # two sources share `--signals`
                others = identity[name]
                identity[name] = [*others, *value] if isinstance(others, list) else value
        return identity

    def check(self, encoder: EncoderFacts) -> None:
        """Raise `InputError` if a column cannot be computed from what the encoder provides."""
        for source in self.sources:
            source.check(encoder)

    def further_texts(self, captions: Sequence[str], encoder: EncoderFacts) -> list[str]:
        """Return texts that the sources encode in addition to these captions, at the same cost."""
        return [text for source in self.sources for text in source.further_texts(captions, encoder)]

    def add_to(
        self, shard: EncodedShard, encoder: EncoderFacts, scores: BlockScores | None = None
    ) -> None:
        """Add (m,) further columns to a shard, each source seeing the values of earlier ones.

        With `scores`, those of the sources that need the scores; without, those of all others.
        """
        for source in self.sources:
            if source.follows_scores == (scores is not None):
                shard.values |= source.of_shard(shard, encoder, scores)


@dataclass
class BatchColumns:
    """The further columns that are computed batch by batch, for pairs of a shard in any order."""

    columns: ColumnSources
    failures: ColumnFailures = field(default_factory=ColumnFailures)
    _places: list[np.ndarray] = field(default_factory=list)
    _values: list[Values] = field(default_factory=list)

    def add(self, places: Sequence[int], batch: PairBatch) -> None:
        """Compute the further columns of a batch, whose pairs have these `places` in the shard."""
        if not len(batch):
            return
        values: Values = {}
        for source in self.columns.sources:
            values |= source.of_batch(batch, self.failures)
        self._places.append(np.asarray(places, dtype=np.int64))
        self._values.append(values)

    def in_order(self) -> Values:
        """Return the further columns of all batches so far, in the order of the pairs."""
        if not self._values:
            return {}
        order = pa.array(np.argsort(np.concatenate(self._places), kind="stable"))
        return {
            name: pa.concat_arrays([values[name] for values in self._values]).take(order)
            for name in self._values[0]
        }


def slices(count: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `size` that cover `count` items."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
