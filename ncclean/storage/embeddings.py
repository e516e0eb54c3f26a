"""The embeddings of a corpus as two matrices, without loading them.

Whatever `ncclean.data.embeddings` reads: vectors that lie ready in local files are memory-mapped,
others are copied to a temporary folder first, and pairs without usable vectors are left out.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ncclean.data.embeddings.pairs import EmbeddedPairs, embedding_dim, read_pairs
from ncclean.data.embeddings.units import resolve_embeddings, vector_keys
from ncclean.errors import InputError, ShardError
from ncclean.scoring.neighbours.matrix import EmbeddingMatrix

_IDENTIFIERS = ("uid", "shard", "key")


@dataclass(frozen=True)
class Embeddings:
    """The pairs of a corpus: (n, d) images and captions, and which pair each row belongs to.

    `pairs` has the columns uid, shard and key; `captions` is None where none were exported.
    `left_out` counts pairs whose vectors are missing or corrupt.
    """

    image: EmbeddingMatrix
    text: EmbeddingMatrix
    pairs: pa.Table
    captions: list[str | None] | None
    left_out: int = 0


@contextlib.contextmanager
def open_embeddings(
    sources: Sequence[str], keys: tuple[str, str] | None = None
) -> Iterator[Embeddings]:
    """The embeddings of the sources in order; see `ncclean.data.embeddings.units`.

    Raises `InputError` for sources without embeddings, a file that is missing, unreadable or of
    another shape than the others, and a corpus without a usable pair.
    """
    shards = resolve_embeddings(sources)
    keys = vector_keys(shards, keys)
    with tempfile.TemporaryDirectory(prefix="ncclean-") as folder:
        images: list[np.ndarray] = []
        texts: list[np.ndarray] = []
        tables: list[pa.Table] = []
        left_out = 0
        try:
            dim = embedding_dim(shards, keys)
            for number, shard in enumerate(shards):
                pairs = read_pairs(shard, keys, dim=dim)
                if pairs.error is not None:
                    raise InputError(pairs.error)
                left_out += len(pairs.problems)
                if not pairs.ok.any():
                    continue
                for side, array, kind in ((images, pairs.image, "i"), (texts, pairs.text, "t")):
                    if not pairs.is_mapped:  # the system may drop a file's pages from memory
                        array = _written(array, Path(folder) / f"{kind}{number}.npy")
                    side.append(array)
                tables.append(_identified(pairs))
        except ShardError as error:
            raise InputError(str(error)) from error
        if not tables:
            raise InputError(f"{sources[0]} holds no usable embeddings")
        table = pa.concat_tables(tables)
        captions = table.column("text").to_pylist()
        yield Embeddings(
            EmbeddingMatrix(images),
            EmbeddingMatrix(texts),
            table.select(list(_IDENTIFIERS)),
            captions if any(caption is not None for caption in captions) else None,
            left_out,
        )


def _written(vectors: np.ndarray, file: Path) -> np.ndarray:
    np.save(file, vectors.astype(np.float16, copy=False))
    mapped: np.ndarray = np.load(file, mmap_mode="r")
    return mapped


def _identified(pairs: EmbeddedPairs) -> pa.Table:
    table = pairs.facts.select([*_IDENTIFIERS, "text"])
    return table if pairs.ok.all() else table.filter(pa.array(pairs.ok))
