"""Bounds the memory of a Parquet file by its footer, before it is read."""

from __future__ import annotations

from collections.abc import Sequence

from ncclean.data.parquet_footer import Chunk
from ncclean.errors import ShardError

# Text and images do not shrink to a two hundredth; a few bytes that stand for gigabytes do.
LARGEST_RATIO = 200
WORTH_A_LOOK = 64 << 20
_PAGES_BYTES = 512 << 20  # of the largest page of each column, which are unpacked at one time
_BATCH_BYTES = 256 << 20
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


def rows_at_once(chunks: Sequence[Chunk], most: int) -> int:
    """The number of rows to read at a time: fewer where one value may be many megabytes.

    A value may be all of its page, and with a dictionary every row may have the same one.
    """
    return max(1, min(most, _BATCH_BYTES // max(1, *(chunk.largest for chunk in chunks), 1)))
