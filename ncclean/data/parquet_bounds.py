"""Bounds the memory of a Parquet file by its footer, before it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ncclean.data.parquet_footer import Chunk
from ncclean.errors import ShardError

# Text and images do not shrink to a two hundredth; a few bytes that stand for gigabytes do.
LARGEST_RATIO = 200
WORTH_A_LOOK = 64 << 20
_PAGES_BYTES = 512 << 20  # of the largest page of each column, which are unpacked at one time
BATCH_BYTES = 256 << 20
_ROWS_OF_A_SMALL_FILE = 100_000


def check_rows(rows: int, size: int) -> None:
    """Raise `ShardError` for more rows than `size` bytes account for.

    An image, or its path and a caption, takes more than a byte; billions of nulls take kilobytes.
    """
    if rows > _ROWS_OF_A_SMALL_FILE + size:
        raise ShardError(f"announces {rows:,} rows in {size:,} bytes, so it is not read")


def inflated_columns(chunks: Sequence[Chunk]) -> dict[str, str]:
    """The columns of a row group that unpack to far more than they take, each with a sentence.

    So are those whose largest pages do not fit into memory together with the other columns'.
    """
    inflated: dict[str, str] = {}
    pages = 0
    for chunk in sorted(chunks, key=lambda chunk: chunk.largest):
        pages += chunk.largest
        if chunk.unpacked > max(WORTH_A_LOOK, LARGEST_RATIO * chunk.packed):
            size = chunk.unpacked
        elif pages > _PAGES_BYTES:
            size = chunk.largest
        else:
            continue
        pages -= chunk.largest
        inflated[chunk.column] = (
            f"column {chunk.column} unpacks from {chunk.packed:,} to {size:,} bytes"
        )
    return inflated


def texts(schema: pq.ParquetSchema) -> list[Any]:
    """The columns that may be read as dictionaries: one large text may be thousands of values."""
    columns = (schema.column(number) for number in range(len(schema)))
    return [column for column in columns if column.physical_type == "BYTE_ARRAY"]


def repeated_texts(schema: pq.ParquetSchema, chunks: Sequence[Chunk], rows: int) -> list[str]:
    """The columns of texts that may unpack to more than fits into memory, of so many rows."""
    largest = {chunk.column: 0 for chunk in chunks}
    for chunk in chunks:
        largest[chunk.column] = max(largest[chunk.column], chunk.largest)
    return [
        one.path
        for one in texts(schema)
        for name, size in largest.items()
        if (one.path == name or one.path.startswith(f"{name}."))
        and (one.max_repetition_level or size * rows > _PAGES_BYTES)
    ]


def inflated_dictionaries(table: pa.Table, chunks: Sequence[Chunk]) -> dict[str, str]:
    """Return what `inflated_columns` does, for a table whose texts are dictionaries."""
    inflated: dict[str, str] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        packed = sum(chunk.packed for chunk in chunks if chunk.column == name)
        size = sum(map(unpacked_bytes, column.chunks))
        if size > max(_PAGES_BYTES, LARGEST_RATIO * packed):
            inflated[name] = f"column {name} unpacks from {packed:,} to {size:,} bytes"
    return inflated


def unpacked_bytes(array: pa.Array) -> int:
    """The bytes of an array whose dictionaries are unpacked: of one text they may be many."""
    kind = array.type
    if pa.types.is_dictionary(kind) and _has_lengths(kind.value_type):
        counts = np.bincount(
            np.asarray(array.indices.drop_null(), np.int64), minlength=len(array.dictionary)
        )
        lengths = pc.fill_null(pc.binary_length(array.dictionary), 0)
        return int(counts @ np.asarray(lengths, np.int64))
    if pa.types.is_struct(kind):
        return sum(map(unpacked_bytes, array.flatten()))
    if pa.types.is_map(kind):  # whose `flatten` is not for dictionaries
        begin, end = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        both = (array.keys, array.items)
        return sum(unpacked_bytes(one.slice(begin, end - begin)) for one in both)
    if pa.types.is_nested(kind):  # lists of all kinds
        return unpacked_bytes(array.flatten())
    return int(array.nbytes)


def longest_text(array: pa.Array) -> int:
    """The bytes of the longest text of an array; 0 for other types."""
    return pc.max(pc.binary_length(array)).as_py() or 0 if is_text(array.type) else 0


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _has_lengths(kind: pa.DataType) -> bool:
    return bool(is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def rows_at_once(chunks: Sequence[Chunk], most: int) -> int:
    """The number of rows to read at a time: fewer where one value may be many megabytes.

    A value may be all of its page, and with a dictionary every row may have the same one.
    """
    return max(1, min(most, BATCH_BYTES // max(1, *(chunk.largest for chunk in chunks), 1)))
