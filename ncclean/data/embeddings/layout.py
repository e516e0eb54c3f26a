"""The base class of layouts of embeddings. A new one is a class here, named in `registry.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ncclean.data.shards import ShardRef
from ncclean.data.source import Source
from ncclean.errors import ShardError

Keys = tuple[str, str]


@dataclass(frozen=True)
class ShardFiles:
    """A Parquet file with a row for each pair, and the files of vectors beside it."""

    layout: str
    table: str
    vectors: tuple[str, ...] = ()


class Vectors(NamedTuple):
    """The vectors of images or captions: (n, d) floats as stored.

    Where the file lets lengths differ, `lengths` has those of the n vectors, -1 for none.
    """

    matrix: np.ndarray
    lengths: np.ndarray | None = None


class EmbeddingLayout(ABC):
    """A layout: how files hold the embeddings of pairs.

    The layouts are asked in the order of the registry: the first that `matches` reads a source.
    """

    name: str  # of `ShardRef.layout`
    files: str  # what a folder of this layout holds, for messages
    keys_of: str | None = None  # the files whose vectors have names; None where they have none
    may_be_images: bool = False  # its files may as well be tables of images
    reads_rows: bool = True  # any rows of a shard can be read without the others

    @abstractmethod
    def matches(self, source: Source) -> bool:
        """Whether a folder or file of embeddings has this layout."""

    @abstractmethod
    def shards(self, source: Source) -> list[ShardFiles]:
        """The files of the source's shards, in order. Raises `InputError` where some are missing.

        A file that a shard needs may be missing: then the shard fails when it is read.
        """

    @abstractmethod
    def cut(self, row_groups: Sequence[int], rows: int) -> list[int]:
        """Split a long shard at row groups of its Parquet file into pieces of about `rows` rows.

        Returns the number of the row after the last of each.
        """

    def columns(self, keys: Keys | None) -> Sequence[str]:
        """The columns of the Parquet file that hold vectors, which `read` needs."""
        return ()

    def vector_names(self, shard: ShardRef) -> list[str]:
        """The names of all vectors in a shard of embeddings. Raises `ShardError`."""
        return []

    @abstractmethod
    def dimensions(self, shard: ShardRef, keys: Keys | None) -> tuple[int, int]:
        """Widths of image and caption vectors, from as little as tells. Raises `ShardError`."""

    @abstractmethod
    def read(self, shard: ShardRef, table: pa.Table, keys: Keys | None) -> tuple[Vectors, Vectors]:
        """Read image and caption vectors of the rows of a metadata table. Raises `ShardError`."""


def required(shard: ShardRef, keys: Keys | None) -> Keys:
    """The chosen names of image and caption vectors. Raises `ShardError` if none were chosen."""
    if keys is None:
        raise ShardError(f"{shard.url}: name its vectors with --embedding-keys IMG,TEXT")
    return keys
