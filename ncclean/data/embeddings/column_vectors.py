"""Parquet files and Lance data sets with columns of image and caption vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ncclean.data.embeddings.layout import EmbeddingLayout, Keys, Vectors, required
from ncclean.data.lance_table import is_lance
from ncclean.data.layout import Source, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.parquet_table import read_table, table_rows, vector_columns
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

_ENDING = ".parquet"
_FIRST_ROWS = 4096  # enough to tell the dimensions


class ParquetVectors(EmbeddingLayout):
    """Embeddings in Parquet columns of lists of floats; row groups are read individually.

    The lists may be of fixed length or not.
    """

    name = "vectors"
    files = "Parquet files"
    keys_of = "Parquet"
    may_be_images = True

    def files_of(self, source: Source, options: SourceOptions) -> list[SourceFile]:
        if source.url.endswith(_ENDING):
            return [SourceFile(self, source.url)]
        names = sorted(name for name in source.names if name.endswith(_ENDING))
        return [SourceFile(self, source.below(name)) for name in names]

    def cut(self, row_groups: Sequence[int], rows: int) -> list[int]:
        total, ends, end, begin = sum(row_groups), [], 0, 0
        for count in row_groups:
            end += count
            if end - begin >= rows or end == total:
                ends.append(end)
                begin = end
        return ends

    def columns(self, keys: Keys | None) -> Sequence[str]:
        return keys or ()

    def vector_names(self, shard: ShardRef) -> list[str]:
        return list(vector_columns(table_rows(shard.url)[1]))

    def dimensions(self, shard: ShardRef, keys: Keys | None) -> tuple[int, int]:
        first, last = shard.rows or (0, 1)
        table = read_table(shard.url, self.columns(keys), (first, min(first + _FIRST_ROWS, last)))
        image, text = self.read(shard, table, keys)
        return int(image.matrix.shape[1]), int(text.matrix.shape[1])

    def read(self, shard: ShardRef, table: pa.Table, keys: Keys | None) -> tuple[Vectors, Vectors]:
        names = required(shard, keys)
        for name in names:
            if name not in table.column_names:
                raise ShardError(f"{shard.url} has no column {name}")
        try:
            image, text = (_vectors(table.column(name)) for name in names)
        except (pa.ArrowException, TypeError) as error:
            raise ShardError(
                f"{shard.url}: {' and '.join(names)} must be lists of floats"
            ) from error
        return image, text


def _vectors(column: pa.ChunkedArray) -> Vectors:
    """Return (n, d) floats of a column of lists, and (n,) lengths: -1 for a null.

    d is the commonest length; rows of another length are NaN.
    """
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy().astype(np.int64)
    lengths_seen, counts = np.unique(lengths[lengths >= 0], return_counts=True)
    dim = int(lengths_seen[counts.argmax()]) if len(lengths_seen) else 0
    fits = lengths == dim
    fitting = column if fits.all() else column.filter(pa.array(fits))
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in fitting.chunks]
    flat = np.concatenate(values) if values else np.empty(0, np.float32)
    if fits.all():
        return Vectors(flat.reshape(-1, dim), lengths)
    matrix = np.full((len(lengths), dim), np.nan, flat.dtype)
    matrix[fits] = flat.reshape(-1, dim)
    return Vectors(matrix, lengths)


class LanceVectors(ParquetVectors):
    """Embeddings in Lance columns of lists of floats."""

    name = "lance-vectors"
    files = "Lance data sets"
    keys_of = "Lance"

    def files_of(self, source: Source, options: SourceOptions) -> list[SourceFile]:
        return [SourceFile(self, source.url)] if is_lance(source.url) else []
