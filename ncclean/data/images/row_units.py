"""Cuts text tables into units of rows, each with the byte at which it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ncclean.data.images.columns import MOST_ROWS
from ncclean.data.layout import Cut
from ncclean.errors import ShardError


class Rows(Protocol):
    """Rows in order; `offset` is the byte at which the next one begins."""

    @property
    def offset(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


def cut_rows(
    rows: Rows,
    unit_rows: int,
    is_wanted: Callable[[Any], bool] = lambda row: True,
    path_of: Callable[[Any], str | None] = lambda row: None,
) -> list[Cut]:
    """First row, row after the last, byte offset of each unit; rows are the wanted ones.

    Rows of one path stay together, as many as can be of one image. Where a row cannot be passed,
    the last unit has a row more than there are: reading it fails, and the units before it are as
    they would be without.
    """
    units: list[Cut] = []
    count = first = 0
    begin = start = rows.offset
    path: str | None = None
    try:
        for row in rows:
            if is_wanted(row):
                is_near = count - first >= unit_rows - 1
                before, path = path, path_of(row) if is_near else None
                is_same = path is not None and path == before
                if count - first >= unit_rows + (MOST_ROWS if is_same else 0):
                    units.append(Cut(first, count, begin))
                    first = count
                begin = start if count == first else begin
                count += 1
            start = rows.offset
    except ShardError:
        if count - first >= unit_rows:
            units.append(Cut(first, count, begin))
            first = count
        return [*units, Cut(first, count + 1, begin if count > first else start)]
    return [*units, Cut(first, count, begin)] if count > first else units
