"""Parquet files whose footers lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_COLUMNS = 1, 3  # of a row group; the metadata of a column
NUM_ROWS, ROW_GROUPS = 3, 4  # of the file
GROUP_ROWS, GROUP_BYTES = 3, 2
VALUES, UNPACKED, PACKED, DATA_PAGE, DICTIONARY_PAGE = 5, 6, 7, 9, 11
HISTOGRAMS, DEFINITION_LEVELS = 16, 3


class Footer:
    """The fields of a footer, with the types that Thrift's compact protocol gives them.

    `data` may go on behind them, as it does behind a page's header: they take `size` bytes.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0
        self.fields = self._value(12)
        self.size = self._place

    def columns(self) -> list[dict[int, Any]]:
        """The metadata of every column of every row group: by number, type and value."""
        return [
            chunk[_COLUMNS[1]][1]
            for group in self.fields[ROW_GROUPS][1][1]
            for chunk in group[_COLUMNS[0]][1][1]
        ]

    def to_bytes(self) -> bytes:
        return encoded(12, self.fields)

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) > 127:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):
            return None
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            number = self._varint()
            return (number >> 1) ^ -(number & 1)
        if kind in (7, 8):
            length = 8 if kind == 7 else self._varint()
            self._place += length
            return self._data[self._place - length : self._place]
        if kind == 9:
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            return head & 15, [
                self._byte() if head & 15 in (1, 2) else self._value(head & 15)
                for _ in range(count)
            ]
        fields, number = {}, 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._value(4)
            fields[number] = (head & 15, self._value(head & 15))
        return fields


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def encoded(kind: int, value: Any) -> bytes:
    """A value of Thrift's compact protocol."""
    if kind in (1, 2):
        return b""
    if kind == 3:
        return bytes([value])
    if kind in (4, 5, 6):
        return _varint((value << 1 ^ value >> 63) & (1 << 64) - 1)
    if kind in (7, 8):
        return (b"" if kind == 7 else _varint(len(value))) + bytes(value)
    if kind == 9:
        inner, values = value
        head = bytes([15 << 4 | inner]) + _varint(len(values))
        return head + b"".join(
            bytes([one]) if inner in (1, 2) else encoded(inner, one) for one in values
        )
    data = b""
    for number, (inner, one) in value.items():
        data += bytes([inner]) + encoded(4, number) + encoded(inner, one)
    return data + b"\0"


def rewrite_footer(path: Path, change: Callable[[Footer], object]) -> None:
    """Change the footer of a Parquet file in place."""
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = Footer(data[begin:-8])
    change(footer)
    encoded = footer.to_bytes()
    path.write_bytes(data[:begin] + encoded + len(encoded).to_bytes(4, "little") + b"PAR1")


def set_field(number: int, value: int, columns: slice = slice(None)) -> Callable[[Footer], object]:
    """Sets a number in the metadata of columns."""

    def change(footer: Footer) -> None:
        for column in footer.columns()[columns]:
            column[number] = (6, value)

    return change


def set_rows(rows: int, group_rows: int | None = None) -> Callable[[Footer], object]:
    """Sets the rows of the file, and those of each row group."""

    def change(footer: Footer) -> None:
        footer.fields[NUM_ROWS] = (6, rows)
        for group in footer.fields[ROW_GROUPS][1][1]:
            if group_rows is not None:
                group[GROUP_ROWS] = (6, group_rows)

    return change


def lengthen_histograms(footer: Footer) -> None:
    """Adds a level to the histogram of definition levels of each column."""
    for column in footer.columns():
        kind, (inner, levels) = column[HISTOGRAMS][1][DEFINITION_LEVELS]
        column[HISTOGRAMS][1][DEFINITION_LEVELS] = kind, (inner, [*levels, 7])
