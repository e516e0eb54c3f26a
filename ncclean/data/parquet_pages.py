"""What the pages of a column chunk unpack to, by their headers: Arrow goes by these.

The sums in a footer are for the reader's information, and anybody may have written them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO

from upath import UPath

from ncclean import stores
from ncclean.data.parquet_footer import Chunk, read_beginning
from ncclean.regular_files import open_file

# Numbers of fields of a PageHeader: parquet.thrift.
_UNPACKED, _PACKED = 2, 3
_DATA_PAGES, _VALUES = (5, 8), 1
_USUAL_HEADER, _LONGEST_HEADER = 1 << 10, 16 << 20  # Arrow reads no longer one
# Of a chunk in a store: all of a small one, else what has the header of the dictionary.
_SMALL_CHUNK, _FIRST_BYTES = 4 << 20, 64 << 10


def with_page_sizes(path: UPath, chunks: Sequence[Chunk]) -> list[Chunk]:
    """The chunks of a row group with what their pages announce.

    In a store each page would be a request, so of a chunk of many megabytes the first pages are
    asked for, its dictionary among them; the footer says the rest. Raises `OSError` if the file
    cannot be read.
    """
    if stores.is_url(path):
        size = path.stat().st_size
        begun = stores.read_ranges(path, [_first_bytes(chunk, size) for chunk in chunks])
        return [
            _with_page_sizes(io.BytesIO(data), chunk, -chunk.begin)
            for data, chunk in zip(begun, chunks, strict=True)
        ]
    with open_file(str(path)) as stream:
        return [_with_page_sizes(stream, chunk) for chunk in chunks]


def _first_bytes(chunk: Chunk, size: int) -> tuple[int, int]:
    """The range of a chunk that is looked at, inside of the file."""
    length = chunk.packed if chunk.packed <= _SMALL_CHUNK else _FIRST_BYTES
    begin = min(max(0, chunk.begin), size - 1)
    return begin, max(begin + 1, min(chunk.begin + length, size))


def _with_page_sizes(stream: IO[bytes], chunk: Chunk, shift: int = 0) -> Chunk:
    """The chunk by its pages; `shift` is where the file's first byte would be in the stream."""
    total = largest = 0
    begin = chunk.begin + shift
    for size, values in _pages(stream, begin, begin + chunk.packed):
        total, largest = total + max(size, values * chunk.value_bytes), max(largest, size)
    return replace(chunk, unpacked=max(chunk.unpacked, total), largest=largest)


def _pages(stream: IO[bytes], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Bytes that each page unpacks to and its values, up to a header Arrow cannot read either."""
    while 0 <= begin < end:
        header = None
        for most in (_USUAL_HEADER, _LONGEST_HEADER):
            stream.seek(begin)
            data = stream.read(min(most, end - begin))
            try:
                header, length = read_beginning(data)
                break
            except (IndexError, ValueError):
                if len(data) < most:
                    return
        if header is None:
            return
        size, packed = header.get(_UNPACKED), header.get(_PACKED)
        if not isinstance(size, int) or not isinstance(packed, int) or packed < 0:
            return
        kinds = [header[number] for number in _DATA_PAGES if isinstance(header.get(number), dict)]
        counts = [kind.get(_VALUES) for kind in kinds]
        yield size, max((count for count in counts if isinstance(count, int)), default=0)
        begin += length + packed
