"""Cuts text tables into units of rows, each with the byte at which it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ncclean.errors import ShardError


class Rows(Protocol):
    """Rows in order; `offset` is the byte at which the next one begins."""

    @property
    def offset(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


def cut_rows(
    rows: Rows, unit_rows: int, is_wanted: Callable[[Any], bool] = lambda row: True
) -> list[tuple[int, int, int]]:
    """First row, row after the last, byte offset of each unit; rows are the wanted ones.

    Where a row cannot be passed, the last unit has a row more than there are: reading it fails,
    and the units before it are as they would be without.
    """
    units: list[tuple[int, int, int]] = []
    count, first = 0, 0
    begin = start = rows.offset
    try:
        for row in rows:
            if is_wanted(row):
                begin = start if count == first else begin
                count += 1
            start = rows.offset
            if count - first == unit_rows:
                units.append((first, count, begin))
                first = count
    except ShardError:
        return [*units, (first, count + 1, begin if count > first else start)]
    return [*units, (first, count, begin)] if count > first else units
