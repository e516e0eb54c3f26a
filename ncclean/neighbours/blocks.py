"""Blocks of pairs, the unit in which a search for neighbours reads a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from ncclean.data.embeddings.pairs import read_pairs
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError

IDENTIFIERS = ("uid", "shard", "key", "caption_number")


@dataclass(frozen=True)
class BlockPairs:
    """The usable pairs of a block: (m, d) float16 vectors of length 1, identifiers, captions.

    `facts` has the columns uid, shard, key, caption_number and text; `left_out` counts pairs whose
    vectors are missing or corrupt.
    """

    image: np.ndarray
    text: np.ndarray
    facts: pa.Table
    left_out: int = 0


class Block(Protocol):
    """Consecutive pairs of a corpus that can be read again and again. Travels to workers."""

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        ...

    def read(self) -> BlockPairs:
        """Raises `InputError` if they cannot be read."""
        ...


@dataclass(frozen=True)
class EmbeddedBlock:
    """The pairs of consecutive shards of embeddings, with vectors of `dim` dimensions."""

    shards: tuple[ShardRef, ...]
    keys: tuple[str, str] | None
    dim: int

    def read(self) -> BlockPairs:
        several = [self._read(shard) for shard in self.shards]
        if len(several) == 1:
            return several[0]
        return BlockPairs(
            np.concatenate([one.image for one in several]),
            np.concatenate([one.text for one in several]),
            pa.concat_tables([one.facts for one in several]),
            sum(one.left_out for one in several),
        )

    def _read(self, shard: ShardRef) -> BlockPairs:
        try:
            pairs = read_pairs(shard, self.keys, dim=self.dim)
        except ShardError as error:
            raise InputError(str(error)) from error
        if pairs.error is not None:
            raise InputError(pairs.error)
        facts = pairs.facts.select([*IDENTIFIERS, "text"])
        if not pairs.ok.all():
            facts = facts.filter(pa.array(pairs.ok))
        if not pairs.ok.any():
            nothing = np.empty((0, self.dim), np.float16)
            return BlockPairs(nothing, nothing, facts, len(pairs.problems))
        image, text = (side.astype(np.float16, copy=False) for side in (pairs.image, pairs.text))
        return BlockPairs(image, text, facts, len(pairs.problems))


@dataclass(frozen=True)
class ArrayBlock:
    """Pairs in memory: (m, d) images and captions, and their texts."""

    image: np.ndarray
    text: np.ndarray
    captions: Sequence[str | None] | None = None

    @property
    def dim(self) -> int:
        return int(self.image.shape[1])

    def read(self) -> BlockPairs:
        count = len(self.image)
        numbers = pa.array([str(row) for row in range(count)])
        facts = pa.table({
            "uid": numbers, "shard": pa.array([""] * count), "key": numbers,
            "caption_number": pa.array(np.zeros(count, np.int16)),
            "text": pa.array(self.captions or [None] * count, pa.string()),
        })  # fmt: skip
        image, text = (side.astype(np.float16, copy=False) for side in (self.image, self.text))
        return BlockPairs(image, text, facts)
