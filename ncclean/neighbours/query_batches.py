"""Lists and the queries that visit them, so many at a time as there is room for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ncclean.neighbours.chunked import VALUES, chunks
from ncclean.neighbours.inverted_lists import Members

_BITS = np.left_shift(1, np.arange(8)).astype(np.uint8)

Visit = tuple[Members, np.ndarray]  # a list, and the ascending ids of queries that visit it


@dataclass(frozen=True)
class Batch:
    """Visits, and the (q,) ascending ids of the queries in any of them."""

    visits: list[Visit]
    queries: np.ndarray

    @property
    def comparisons(self) -> int:
        """How many members queries are compared with, in all."""
        return sum(len(members.ids) * len(asking) for members, asking in self.visits)


def batches(visits: Iterable[Visit], room: int, count: int) -> Iterator[Batch]:
    """Visits with `room` distinct ones of `count` queries at a time."""
    batch: list[Visit] = []
    seen = IdSet(count)
    for members, ids in visits:
        if not len(members.ids):
            continue
        for rows in chunks(len(ids), room):
            asking = ids[rows]
            if batch and len(seen) + seen.fresh(asking) > room:
                yield Batch(batch, seen.ids())
                batch, seen = [], IdSet(count)
            batch.append((members, asking))
            seen.add(asking)
    if batch:
        yield Batch(batch, seen.ids())


class IdSet:
    """A set of ids below `count`, one bit for each that could be in it."""

    def __init__(self, count: int) -> None:
        self._bits = np.zeros(count // 8 + 1, np.uint8)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def fresh(self, ids: np.ndarray) -> int:
        """How many of (m,) different ids are not in the set."""
        return len(ids) - int(np.count_nonzero(self._bits[ids >> 3] & _BITS[ids & 7]))

    def add(self, ids: np.ndarray) -> None:
        """Add (m,) different ids."""
        self._size += self.fresh(ids)
        np.bitwise_or.at(self._bits, ids >> 3, _BITS[ids & 7])

    def ids(self) -> np.ndarray:
        """Those in the set, ascending."""
        ids = np.empty(self._size, np.int32)
        begin = 0
        for piece in chunks(len(self._bits), VALUES):
            some = np.flatnonzero(np.unpackbits(self._bits[piece], bitorder="little"))
            ids[begin : begin + len(some)] = some + 8 * piece.start
            begin += len(some)
        return ids
