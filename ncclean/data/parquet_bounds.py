"""Bounds the memory of a Parquet file by its footer, before it is read."""

from __future__ import annotations

from typing import Any

# Text and images do not shrink to a two hundredth; a few bytes that stand for gigabytes do.
_LARGEST_RATIO = 200
_WORTH_A_LOOK = 64 << 20
_BATCH_BYTES = 256 << 20


def inflated_columns(file: Any, group: int) -> dict[str, str]:
    """Columns of a row group that unpack to far more than their size, with a sentence for each."""
    inflated = {}
    row_group = file.metadata.row_group(group)
    for number in range(row_group.num_columns):
        chunk = row_group.column(number)
        packed, unpacked = chunk.total_compressed_size, chunk.total_uncompressed_size
        if unpacked > max(_WORTH_A_LOOK, _LARGEST_RATIO * packed):
            name = chunk.path_in_schema.split(".")[0]
            inflated[name] = f"column {name} unpacks from {packed:,} to {unpacked:,} bytes"
    return inflated


def rows_at_once(file: Any, group: int, most: int) -> int:
    """The number of rows to read at a time: fewer where one value may be many megabytes.

    A dictionary has each value once, so a batch may be as many times as large as its rows.
    """
    row_group = file.metadata.row_group(group)
    chunks = [row_group.column(number) for number in range(row_group.num_columns)]
    sizes: list[int] = [
        chunk.data_page_offset - chunk.dictionary_page_offset
        for chunk in chunks
        if chunk.dictionary_page_offset is not None
    ]
    return max(1, min(most, _BATCH_BYTES // max([1, *sizes])))
