"""Blocks of pairs, the unit in which a search reads a corpus, and the vectors of a reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from ncclean.data.embeddings.pairs import embedding_dim, read_pairs, unit_vectors
from ncclean.data.embeddings.units import resolve_embeddings, vector_keys
from ncclean.data.embeddings.vectors import read_npy
from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef, expand, places
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
        """Width of the vectors of the block."""
        ...

    def read(self) -> BlockPairs:
        """Read the vectors and the identifiers of the block. Raises `InputError`."""
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


# Bytes of input to a block: what a task reads at once, and a killed one loses.
_LEAST_BLOCK_BYTES, _LARGEST_BLOCK_BYTES = 64 << 20, 1 << 30
_BLOCKS = 256


def embedded_blocks(
    shards: Sequence[ShardRef], keys: tuple[str, str] | None = None
) -> list[EmbeddedBlock]:
    """Cut shards of embeddings into the blocks that a neighbour search reads, in order.

    Raises `InputError` for embeddings whose vectors cannot be told or read.
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
    candidate_counts: list[ShardRef] = []
    size = 0
    for shard in shards:
        if candidate_counts and size + shard.size > room:
            yield candidate_counts
            candidate_counts, size = [], 0
        candidate_counts.append(shard)
        size += shard.size
    if candidate_counts:
        yield candidate_counts


def read_reference(
    sources: Sequence[str], keys: tuple[str, str] | None, dim: int
) -> tuple[np.ndarray, pa.Array]:
    """Read the (r, d) float16 image vectors of a reference, and their uids.

    The sources are embeddings as those of a corpus, or `.npy` files of images, which are called by
    their rows. Raises `InputError` for what cannot be read, and for vectors of another width than
    `dim`.
    """
    locations = [place for source in sources for place in expand(source, places)]
    matrices = [place for place in locations if place.endswith(".npy")]
    if not matrices:
        return _of_embeddings(sources, keys, dim)
    if len(matrices) < len(locations):
        raise InputError("--reference takes .npy files or embeddings with their pairs, not both")
    images = np.concatenate(list(_of_files(matrices, dim)))
    if not len(images):
        raise InputError(f"{sources[0]} holds no vectors")
    return images, pa.array([str(row) for row in range(len(images))])


def _of_embeddings(
    sources: Sequence[str], keys: tuple[str, str] | None, dim: int
) -> tuple[np.ndarray, pa.Array]:
    blocks = embedded_blocks(resolve_embeddings(sources), keys)
    _check_dim(sources[0], blocks[0].dim, dim)
    read = [block.read() for block in blocks]
    images = np.concatenate([block.image for block in read])
    if not len(images):
        raise InputError(f"{sources[0]} holds no usable embeddings")
    uids = pa.chunked_array([c for block in read for c in block.facts.column("uid").chunks])
    return images, uids.combine_chunks()


def _of_files(matrices: Iterable[str], dim: int) -> Iterator[np.ndarray]:
    for place in matrices:
        try:
            vectors = read_npy(place)
        except ShardError as error:
            raise InputError(str(error)) from error
        _check_dim(place, vectors.shape[1], dim)
        problems: dict[int, tuple[SkipReason, str]] = {}
        units = unit_vectors(vectors, "image", None, problems)
        if problems:
            row, (_, what) = next(iter(problems.items()))
            raise InputError(f"{place}, row {row}: {what}")
        yield units.astype(np.float16, copy=False)


def _check_dim(source: str, own_dim: int, dim: int) -> None:
    if own_dim != dim:
        raise InputError(
            f"--reference {source} has {own_dim} dimensions, the embeddings {dim}: both must come "
            "from one model"
        )
