"""The embeddings of a corpus as blocks, and those of a reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ncclean.data.embeddings.pairs import embedding_dim, unit_vectors
from ncclean.data.embeddings.units import resolve_embeddings, vector_keys
from ncclean.data.embeddings.vectors import read_npy
from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef, expand, places
from ncclean.errors import InputError, ShardError
from ncclean.neighbours.blocks import EmbeddedBlock

# Bytes of input to a block: what a task reads at once, and a killed one loses.
_LEAST_BLOCK_BYTES, _LARGEST_BLOCK_BYTES = 64 << 20, 1 << 30
_BLOCKS = 256


def embedded_blocks(
    shards: Sequence[ShardRef], keys: tuple[str, str] | None = None
) -> list[EmbeddedBlock]:
    """Blocks of the shards of embeddings in order; see `ncclean.data.embeddings.units`.

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
    held: list[ShardRef] = []
    size = 0
    for shard in shards:
        if held and size + shard.size > room:
            yield held
            held, size = [], 0
        held.append(shard)
        size += shard.size
    if held:
        yield held


def read_reference(
    sources: Sequence[str], keys: tuple[str, str] | None, dim: int
) -> tuple[np.ndarray, pa.Array]:
    """The (r, d) float16 images of a reference and their uids.

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
