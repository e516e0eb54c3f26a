"""Blocks of pairs, the unit in which a search reads a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ncclean.data.embeddings.pairs import embedding_dim, read_pairs
from ncclean.data.embeddings.units import vector_keys
from ncclean.data.fingerprints import concatenated
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError

IDENTIFIERS = ("uid", "shard", "key", "caption_number")


@dataclass(frozen=True)
class BlockPairs:
    """The m usable pairs of a block: (m, d) float16 unit vectors of both sides, and identifiers.

    `facts` has the columns uid, shard, key, caption_number and text, and carries the fingerprints
    of the shards; `left_out` counts pairs whose vectors are missing or corrupt.
    """

    image: np.ndarray
    text: np.ndarray
    facts: pa.Table
    left_out: int = 0


@dataclass(frozen=True)
class EmbeddedBlock:
    """The pairs of consecutive shards of embeddings, with vectors of `dim` dimensions.

    They can be read repeatedly, also by other processes.
    """

    shards: tuple[ShardRef, ...]
    keys: tuple[str, str] | None
    dim: int

    def read(self) -> BlockPairs:
        """Read the vectors and the identifiers of the block. Raises `InputError`."""
        several = [self._read(shard) for shard in self.shards]
        if len(several) == 1:
            return several[0]
        return BlockPairs(
            np.concatenate([one.image for one in several]),
            np.concatenate([one.text for one in several]),
            concatenated([one.facts for one in several]),
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
        image, text = (
            side.reshape(-1, self.dim).astype(np.float16, copy=False)
            for side in (pairs.image, pairs.text)
        )
        return BlockPairs(image, text, facts, len(pairs.problems))


# Bytes of input per block: what a task reads at once, and a killed one loses.
_LEAST_BLOCK_BYTES, _LARGEST_BLOCK_BYTES = 64 << 20, 1 << 30
_BLOCKS = 256


def embedded_blocks(
    shards: Sequence[ShardRef], keys: tuple[str, str] | None = None
) -> list[EmbeddedBlock]:
    """Cut shards of embeddings into the blocks that a neighbour search reads, in order.

    Raises `InputError` for embeddings whose vectors cannot be identified or read.
    """
    keys = vector_keys(shards, keys)
    try:
        dim = embedding_dim(shards, keys)
    except ShardError as error:
        raise InputError(str(error)) from error
    absolute = [shard.absolute() for shard in shards]
    return [EmbeddedBlock(tuple(several), keys, dim) for several in _grouped(absolute)]


def _grouped(shards: Sequence[ShardRef]) -> Iterator[list[ShardRef]]:
    total = sum(shard.size for shard in shards)
    room = min(max(total // _BLOCKS, _LEAST_BLOCK_BYTES), _LARGEST_BLOCK_BYTES)
    several: list[ShardRef] = []
    size = 0
    for shard in shards:
        if several and size + shard.size > room:
            yield several
            several, size = [], 0
        several.append(shard)
        size += shard.size
    if several:
        yield several
