"""What the footer of a Parquet file says of its column chunks, read without pyarrow.

Arrow's own accessor ends the process at level histograms of a wrong length, which no `except`
catches. The footer is a struct of Thrift's compact protocol: parquet.thrift, FileMetaData.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO, Any

from upath import UPath

from ncclean import stores
from ncclean.errors import ShardError

_MAGIC = b"PAR1"
_DEEPEST = 64  # as Thrift itself
# Numbers of fields, by the struct that has them.
_SCHEMA, _ROW_GROUPS = 2, 4
_TYPE, _TYPE_LENGTH, _CHILDREN = 1, 2, 5
_COLUMNS, _META_DATA = 1, 3
_FIXED_LENGTH = 7
_VALUE_BYTES = 4  # at least, once it is read: a run of equal ones takes next to nothing in a page
_PATH, _UNPACKED, _PACKED, _DATA_PAGE, _DICTIONARY_PAGE = 3, 6, 7, 9, 11


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group, from the byte `begin` on: `column` is its top-level name.

    A value takes at least `value_bytes` in memory. `largest` is what its largest page unpacks to.
    A footer does not tell that, but the packed size of its dictionary, which is one.
    """

    column: str
    begin: int
    packed: int
    unpacked: int
    largest: int
    value_bytes: int = _VALUE_BYTES


def read_chunks(path: UPath) -> list[list[Chunk]]:
    """The chunks of each row group of a Parquet file.

    Raises `ShardError` for a broken footer, and `OSError` if it cannot be read.
    """
    with stores.open_anywhere(path) as stream:
        try:
            fields = read_struct(read_footer(stream))
            sizes = [_value_bytes(one) for one in fields[_SCHEMA] if _is_column(one)]
            return [[_chunk(chunk[_META_DATA], size)
                     for chunk, size in zip(group[_COLUMNS], sizes, strict=True)]
                    for group in fields.get(_ROW_GROUPS, ())]  # fmt: skip
        except (IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ShardError("has a footer that cannot be read") from error


def read_struct(data: bytes) -> dict[int, Any]:
    """Decode a struct of Thrift's compact protocol: its values by the numbers of the fields.

    Raises `IndexError` or `ValueError` for what is none.
    """
    return read_beginning(data)[0]


def read_beginning(data: bytes) -> tuple[dict[int, Any], int]:
    """Decode the struct at the beginning of `data`, and count the bytes that it takes."""
    compact = _Compact(data)
    return compact.value(12, 0), compact.place


def read_footer(stream: IO[bytes]) -> bytes:
    """The bytes of a Parquet file's footer. Raises `ValueError` for a file that has none."""
    end = stream.seek(0, 2)
    stream.seek(max(0, end - 8))
    tail = stream.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > end - 8:
        raise ValueError("no footer")
    stream.seek(end - 8 - length)
    return stream.read(length)


def _is_column(element: dict[int, Any]) -> bool:
    """Whether an element of a schema is a column, as Arrow tells them from groups."""
    return _TYPE in element and not element.get(_CHILDREN)


def _value_bytes(column: dict[int, Any]) -> int:
    is_fixed = column[_TYPE] == _FIXED_LENGTH
    return max(_VALUE_BYTES, column[_TYPE_LENGTH]) if is_fixed else _VALUE_BYTES


def _chunk(fields: dict[int, Any], value_bytes: int) -> Chunk:
    data_begin = fields[_DATA_PAGE]
    begin = fields.get(_DICTIONARY_PAGE) or data_begin
    return Chunk(
        column=fields[_PATH][0].decode("utf-8", "replace"),
        begin=min(begin, data_begin),
        packed=fields[_PACKED],
        unpacked=fields[_UNPACKED],
        largest=max(0, data_begin - begin),
        value_bytes=value_bytes,
    )


class _Compact:
    """Values of Thrift's compact protocol, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self.place = data, 0

    def value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._take(1)[0]
        if kind in (4, 5, 6):
            number = self._varint()
            return (number >> 1) ^ -(number & 1)
        if kind == 7:
            return struct.unpack("<d", self._take(8))[0]
        if kind == 8:
            return self._take(self._varint())
        if kind in (9, 10):
            return self._list(depth)
        if kind == 11:
            return self._map(depth)
        if kind == 12:
            return self._struct(depth)
        raise ValueError(f"type {kind}")

    def _list(self, depth: int) -> list[Any]:
        head = self._take(1)[0]
        count = self._varint() if head >> 4 == 15 else head >> 4
        if count > len(self._data) - self.place:  # each takes a byte
            raise ValueError("a list longer than the footer")
        if head & 15 in (1, 2):
            return [byte == 1 for byte in self._take(count)]
        return [self.value(head & 15, depth + 1) for _ in range(count)]

    def _map(self, depth: int) -> list[Any]:
        """Keys and values in turn; Parquet has no maps, but readers pass over them."""
        count = self._varint()
        if count > len(self._data) - self.place:
            raise ValueError("a map longer than the footer")
        kinds = self._take(1)[0] if count else 0
        return [
            self.value(kind, depth + 1) for _ in range(count) for kind in (kinds >> 4, kinds & 15)
        ]

    def _struct(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self.value(4, depth)
            fields[number] = self.value(head & 15, depth + 1)
        return fields

    def _take(self, count: int) -> bytes:
        begin, self.place = self.place, self.place + count
        if self.place > len(self._data):
            raise ValueError("the footer ends too early")
        return self._data[begin : self.place]

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._take(1)[0]
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")
