"""Lists and the queries that visit them, so many at a time as there is room for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ncclean.neighbours.block_tasks import chunks
from ncclean.neighbours.inverted_lists import Members

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
    seen, distinct = np.zeros(count, dtype=bool), 0
    for members, ids in visits:
        if not len(members.ids):
            continue
        for rows in chunks(len(ids), room):
            asking = ids[rows]
            fresh = len(asking) - int(np.count_nonzero(seen[asking]))
            if batch and distinct + fresh > room:
                yield Batch(batch, np.flatnonzero(seen).astype(np.int32))
                batch, seen[:], distinct, fresh = [], False, 0, len(asking)
            batch.append((members, asking))
            seen[asking] = True
            distinct += fresh
    if batch:
        yield Batch(batch, np.flatnonzero(seen).astype(np.int32))
