"""A shard after its encoder: facts about each row, and the vectors of the scorable pairs.

Both encoders, of images and of embeddings, end here; later code does not know which it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ncclean.data.samples import FurtherMembers
from ncclean.scoring.stats import ColumnFailures

Values = dict[str, pa.Array]


@dataclass(kw_only=True)
class EncodedShard:
    """An encoded shard: n rows of the score table in input order, of which m are pairs to score.

    `name` is the shard's in the run; a file of embeddings may hold rows of several shards, named in
    the facts. `facts` are (n,) columns of the score table, `text` among them; `ok` is (n,), true
    for the m pairs. `image` and `text` are (m, d), of length 1. `metadata` has n rows of the fields
    that the options name. `images` are (m,) numbers of the images, None if all differ;
    `image_signals` those of each pair. `values` are (m,) further columns that the encoder computed
    batch by batch, `failures` the pairs without them. `captions_cut` captions have more tokens than
    `context_length`, None without a model. `further` counts images and captions that belong to no
    row. `error` says why the shard broke off, `seconds` how long encoding took.
    """

    name: str
    facts: dict[str, pa.Array]
    ok: np.ndarray
    image: torch.Tensor
    text: torch.Tensor
    metadata: pa.Table
    images: np.ndarray | None = None
    image_signals: Sequence[Mapping[str, Any] | None] | None = None
    values: Values = field(default_factory=dict)
    failures: ColumnFailures = field(default_factory=ColumnFailures)
    captions_cut: int = 0
    context_length: int | None = None
    further: FurtherMembers = field(default_factory=FurtherMembers)
    error: str | None = None
    seconds: float = 0.0
    times: dict[str, float] = field(default_factory=dict)

    def of_pairs(self, fact: str) -> list[Any]:
        """Return (m,) values of a column of facts, for the scorable pairs."""
        values: list[Any] = self.facts[fact].filter(pa.array(self.ok)).to_pylist()
        return values

    @property
    def captions(self) -> list[str | None]:
        """Return (m,) captions of the scorable pairs; None if the input has none."""
        return self.of_pairs("text")


def scattered(values: np.ndarray | pa.Array, ok: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Spread the (m,) values of scored rows over (n,) rows, null where `ok` (n,) is false."""
    index = np.cumsum(ok) - 1
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return array.take(pa.array(index, mask=~ok))
