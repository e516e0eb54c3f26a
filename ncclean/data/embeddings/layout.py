"""The base class of layouts of embeddings. A new one is a class here, named in `registry.py`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ncclean.data.lance_table import ENDING
from ncclean.data.layout import Cut, Facts, Layout, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.parquet_table import table_rows
from ncclean.data.shards import ShardRef, sizes_and_versions
from ncclean.errors import InputError, ShardError

Keys = tuple[str, str]


class Vectors(NamedTuple):
    """The vectors of n images or captions: (n, d) floats as stored.

    If the file allows lengths to differ, `lengths` (n,) has them, -1 for a missing vector.
    """

    matrix: np.ndarray
    lengths: np.ndarray | None = None


class EmbeddingLayout(Layout):
    """A way to store embeddings of pairs: a Parquet row for each pair, and vectors beside it.

    A file that a shard needs may be missing: reading the shard then fails.
    """

    endings = (".parquet", ENDING)
    unit_rows = 50_000  # bounds memory and the cost of a crash
    files: str  # what a folder of this layout holds, for messages
    keys_of: str | None = None  # the files with named vectors; None if vectors have no names
    may_be_images = False

    def facts(self, file: SourceFile, options: SourceOptions) -> Facts:
        try:
            facts = sizes_and_versions((file.url, *file.files))
        except (OSError, InputError):  # reported when it is read
            return Facts(0, "")
        return Facts(sum(size for size, _ in facts), " ".join(version for _, version in facts))

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        row_groups, _ = table_rows(file.url)
        ends = [sum(row_groups)]
        if ends[0] > 1.5 * self.unit_rows:
            ends = self.cut(row_groups, self.unit_rows)
        return [Cut(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]

    @abstractmethod
    def cut(self, row_groups: Sequence[int], rows: int) -> list[int]:
        """Split a long shard at row groups of its Parquet file into pieces of about `rows` rows.

        Returns the end row of each piece.
        """

    def columns(self, keys: Keys | None) -> Sequence[str]:
        """Return the columns of the Parquet file with the vectors that `read` needs."""
        return ()

    def vector_names(self, shard: ShardRef) -> list[str]:
        """Return the names of all vectors in a shard of embeddings. Raises `ShardError`."""
        return []

    @abstractmethod
    def dimensions(self, shard: ShardRef, keys: Keys | None) -> tuple[int, int]:
        """Return the widths of image and caption vectors, reading little. Raises `ShardError`."""

    @abstractmethod
    def read(self, shard: ShardRef, table: pa.Table, keys: Keys | None) -> tuple[Vectors, Vectors]:
        """Read image and caption vectors of the rows of a metadata table. Raises `ShardError`."""


def required(shard: ShardRef, keys: Keys | None) -> Keys:
    """Return the names of image and caption vectors. Raises `ShardError` if they are unknown."""
    if keys is None:
        raise ShardError(f"{shard.url}: name its vectors with --embedding-keys IMG,TEXT")
    return keys
