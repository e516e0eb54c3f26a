"""What the pages of a column chunk unpack to, by their headers: Arrow goes by these.

The sums in a footer are for the reader's information, and anybody may have written them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO

from upath import UPath

from ncclean import stores
from ncclean.data.parquet_footer import Chunk, read_beginning

# Numbers of fields of a PageHeader: parquet.thrift.
_UNPACKED, _PACKED = 2, 3
_DATA_PAGES, _VALUES = (5, 8), 1
_VALUE_BYTES = 4  # at least, once it is read: a run of equal ones takes next to nothing in a page
_USUAL_HEADER, _LONGEST_HEADER = 1 << 10, 16 << 20  # Arrow reads no longer one


def with_page_sizes(path: UPath, chunks: Sequence[Chunk]) -> list[Chunk]:
    """The chunks of a row group of a local file, with what their pages announce.

    Of a file in a store, where each page would be a request, they stay what the footer says.
    Raises `OSError` if the file cannot be read.
    """
    if stores.is_url(path):
        return list(chunks)
    with stores.open_file(str(path)) as stream:
        return [_with_page_sizes(stream, chunk) for chunk in chunks]


def _with_page_sizes(stream: IO[bytes], chunk: Chunk) -> Chunk:
    total = largest = 0
    for size, values in _pages(stream, chunk.begin, chunk.begin + chunk.packed):
        total, largest = total + max(size, values * _VALUE_BYTES), max(largest, size)
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
