"""`--canonical`: canonical similarity as a column, by projections that a pass has fitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ncclean.base import schema
from ncclean.base.config import ScoreOptions
from ncclean.execution.column_source import ColumnSource, EncoderFacts
from ncclean.execution.encoded_shard import EncodedShard, Values
from ncclean.scoring.canonical import halves
from ncclean.scoring.columns import BlockScores


class CanonicalColumn(ColumnSource):
    """Computes `canonical_similarity`; null where a half of the corpus was too small."""

    flag = "--canonical"
    options = ()
    follows_scores = False
    types: Mapping[str, pa.DataType] = {schema.CANONICAL.name: schema.CANONICAL.type}

    @classmethod
    def of(cls, options: ScoreOptions) -> CanonicalColumn | None:
        """The column source of `--canonical`, None without it."""
        return cls() if options.canonical else None

    def identity(self) -> Mapping[str, Any]:
        """Nothing: the column depends on no version but that of ncclean."""
        return {}

    def of_shard(
        self, shard: EncodedShard, encoder: EncoderFacts, scores: BlockScores | None
    ) -> Values:
        """(m,) cosines within the directions that images and captions of the other half share."""
        projections = encoder.corpus.projections
        if projections is None:
            return {}
        image, text = shard.image.numpy(), shard.text.numpy()
        cosines = np.empty(len(image), np.float32)
        half = halves(shard.of_pairs("shard"), np.array(shard.of_pairs("row"), np.int32))
        for projection, rows in zip(projections, (~half, half), strict=True):
            cosines[rows] = projection.cosines(image[rows], text[rows])
        return {schema.CANONICAL.name: pa.array(cosines)}
