"""Turn Arrow's columns into rows whose values are bounded in size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ncclean.data.arrow_values import python_values
from ncclean.data.images.text_rows import LeftOut, Row
from ncclean.data.sample_groups import LARGEST_TEXT

BATCH_BYTES = 256 << 20  # limit for the values of a column at one time


class ParquetRow(Row):
    """A row of a Parquet file, with its place in a batch and the schema of the file.

    The batch has every column, including vectors, except those too large to read; its texts may be
    dictionaries.
    """

    __slots__ = ("batch", "place", "schema")

    def __init__(self, values: Row, batch: pa.RecordBatch, place: int, schema: pa.Schema) -> None:
        super().__init__(values)
        self.batch, self.place, self.schema = batch, place, schema


def rows_of_batch(
    batch: pa.RecordBatch,
    keys: Mapping[str, str],
    schema: pa.Schema | None = None,
    left_out: Mapping[str, LeftOut] = MappingProxyType({}),
) -> Iterator[Row]:
    """Yield the rows of a batch under the names in `keys`; columns without one are omitted.

    `left_out` replaces columns that were not read. With the `schema` of the file, the rows are
    `ParquetRow`s.
    """
    columns: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in keys:
            columns.setdefault(keys[name], column)
    read = itertools.starmap(column_values, columns.items())
    for number, values in enumerate(zip(*read, strict=True)):
        row = {**dict(zip(columns, values, strict=True)), **left_out}
        yield row if schema is None else ParquetRow(row, batch, number, schema)


def column_values(name: str, column: pa.Array) -> list[Any]:
    """Return the values of a column; a reason in place of those that unpack to too much.

    The limit is lower for text, which is held until the pair's shard is finished; an image is not.
    """
    column = _with_bytes(column)
    size = unpacked_bytes(column)
    if size > BATCH_BYTES or longest_text(column) > LARGEST_TEXT:
        if len(column) == 1:
            return [LeftOut(f"column {name} unpacks to {size:,} bytes in one row")]
        return [
            one for row in range(len(column)) for one in column_values(name, column.slice(row, 1))
        ]
    return python_values(column)


def _with_bytes(column: pa.Array) -> pa.Array:
    """Turn a column's lists of bytes into binary, also in a struct, as polars writes images."""
    kind = column.type
    if is_byte_list(kind):
        binary = pa.large_binary() if pa.types.is_large_list(kind) else pa.binary()
        validity, offsets, *_ = column.buffers()
        values = column.values.buffers()[1]
        if column.values.offset or column.values.null_count or values is None:
            return column
        return pa.Array.from_buffers(
            binary, len(column), [validity, offsets, values], column.null_count, column.offset
        )
    if pa.types.is_struct(kind) and any(is_byte_list(field.type) for field in kind):
        fields = [_with_bytes(one) for one in column.flatten()]
        return pa.StructArray.from_arrays(fields, kind.names, mask=column.is_null())
    return column


def is_byte_list(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_list and pa.types.is_uint8(kind.value_type))


def pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Halve a batch until the rows of each piece take no more bytes than the limit."""
    if batch.nbytes <= most or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half), most)
    yield from pieces(batch.slice(half), most)


def unpacked_bytes(array: pa.Array) -> int:
    """Count the bytes of an array with its dictionaries unpacked: one text may become many."""
    kind = array.type
    if pa.types.is_dictionary(kind) and _has_lengths(kind.value_type):
        counts = np.bincount(
            np.asarray(array.indices.drop_null(), np.int64), minlength=len(array.dictionary)
        )
        lengths = pc.fill_null(pc.binary_length(array.dictionary), 0)
        return int(counts @ np.asarray(lengths, np.int64))
    if pa.types.is_struct(kind):
        return sum(map(unpacked_bytes, array.flatten()))
    if pa.types.is_map(kind):  # its `flatten` does not handle dictionaries
        begin, end = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        both = (array.keys, array.items)
        return sum(unpacked_bytes(one.slice(begin, end - begin)) for one in both)
    if pa.types.is_nested(kind):  # lists of all kinds; Python takes eight bytes for each value
        values = array.flatten()
        return unpacked_bytes(values) + 8 * len(values)
    return int(array.nbytes)


def longest_text(array: pa.Array) -> int:
    """Return the bytes of the longest text of an array; 0 for other types."""
    return pc.max(pc.binary_length(array)).as_py() or 0 if is_text(array.type) else 0


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _has_lengths(kind: pa.DataType) -> bool:
    return bool(is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
