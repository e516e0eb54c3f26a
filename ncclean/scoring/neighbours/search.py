"""The nearest members of lists, list by list, as matrix products.

A query is compared with its nearest list first. The k-th cosine found there is a floor, which rises
with each list (`rising`): only members that reach it can be among the k nearest, so few cosines
are kept. All of this is exact for the lists visited, and the order is that of cosines, then of ids:
the result depends neither on how lists are divided among tasks nor on the order of the tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ncclean.scoring.neighbours.arithmetic import fastest
from ncclean.scoring.neighbours.products import Largest

# Cosines of float32 products that differ by less are ties.
TIE = 1e-6
QUERY_ROWS = 1024
_BLOCK_VALUES = 1 << 25  # 128 MB of products
_BUFFERED = 8_000_000  # candidates held before those that cannot count are dropped


@dataclass(frozen=True)
class Nearest:
    """For q queries: (q, k) float32 cosines, descending, and int32 ids; -1 where missing."""

    cosines: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True)
class Candidates:
    """(c,) members found for queries: ids of both and float32 cosines, in any order."""

    queries: np.ndarray
    ids: np.ndarray
    cosines: np.ndarray

    def __len__(self) -> int:
        return len(self.queries)

    def at(self, chosen: np.ndarray) -> Candidates:
        """Those at these places."""
        return Candidates(self.queries[chosen], self.ids[chosen], self.cosines[chosen])

    @classmethod
    def joined(cls, several: list[Candidates]) -> Candidates:
        if not several:
            return cls(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))
        names = ("queries", "ids", "cosines")
        return cls(*(np.concatenate([getattr(one, name) for one in several]) for name in names))


def nearest_in_list(
    queries: np.ndarray, members: np.ndarray, ids: np.ndarray, k: int, itself: np.ndarray | None
) -> Nearest:
    """The k nearest of (m, d) members with (m,) ids for (q, d) queries.

    `itself` (q,) are the ids of the queries where they are among the members.
    """
    cosines = np.full((len(queries), k), -np.inf, dtype=np.float32)
    near = np.full((len(queries), k), -1, dtype=np.int32)
    count = min(k, len(ids) - (itself is not None))
    width = count + (itself is not None)
    if not width or not len(queries):
        return Nearest(cosines, near)
    largest = Largest(members, fastest(len(queries) * len(ids)))
    for rows in query_blocks(len(queries), len(ids)):
        places, values = largest.of(queries[rows], width)
        if itself is not None:
            is_itself = ids[places] == itself[rows, None]
            at = np.where(is_itself.any(axis=1), is_itself.argmax(axis=1), count)
            columns = np.arange(count)
            others = columns + (columns >= at[:, None])
            places, values = (np.take_along_axis(one, others, axis=1) for one in (places, values))
        cosines[rows, :count], near[rows, :count] = values, ids[places]
    return Nearest(cosines, near)


def query_blocks(queries: int, members: int) -> Iterator[slice]:
    """So many queries at a time that their products with a long list still fit into memory."""
    rows = block_rows(members)
    for start in range(0, queries, rows):
        yield slice(start, start + rows)


def block_rows(members: int) -> int:
    """How many queries are compared with so many members at a time."""
    return min(QUERY_ROWS, max(_BLOCK_VALUES // max(members, 1), 1))


def order_of(numbers: np.ndarray, count: int) -> np.ndarray:
    """The stable order of (n,) numbers below `count`; of 16 bits it takes a tenth of the time."""
    small = np.uint16 if count <= 1 << 16 else np.int64
    return np.argsort(numbers.astype(small, copy=False), kind="stable")


@dataclass
class Gathering(ABC):
    """Gathers candidates, and drops those that cannot count before they take too much memory."""

    buffered: ClassVar[int] = _BUFFERED
    _held: list[Candidates] = field(default_factory=list, kw_only=True)
    _count: int = field(default=0, kw_only=True)

    def add(self, candidates: Candidates) -> None:
        self._held.append(candidates)
        self._count += len(candidates)
        if self._count > self.buffered:
            self._held = [self.result()]
            self._count = len(self._held[0])

    def result(self) -> Candidates:
        """Those of all that was added that count."""
        return self.kept_of(Candidates.joined(self._held))

    @abstractmethod
    def kept_of(self, candidates: Candidates) -> Candidates:
        """Those of some candidates that count, however often it is asked of what it returned."""


@dataclass
class NearestCandidates(Gathering):
    """Holds on to the k nearest of each query."""

    k: int

    def kept_of(self, candidates: Candidates) -> Candidates:
        """The k nearest of each query by id, nearest first."""
        candidates = candidates.at(_order(candidates))
        return candidates.at(ranks(candidates.queries) < self.k)


def merge_nearest(query_ids: np.ndarray, home: Nearest, further: Candidates) -> Nearest:
    """The k nearest of (q,) ascending query ids, of those found at home and the further ones."""
    count, k = home.ids.shape
    own = Candidates(np.repeat(query_ids, k), home.ids.ravel(), home.cosines.ravel())
    best = NearestCandidates(k)
    best.add(own.at(np.flatnonzero(own.ids >= 0)))
    best.add(further)
    nearest = best.result()
    cosines = np.full((count, k), -np.inf, dtype=np.float32)
    ids = np.full((count, k), -1, dtype=np.int32)
    places = np.searchsorted(query_ids, nearest.queries), ranks(nearest.queries)
    cosines[places], ids[places] = nearest.cosines, nearest.ids
    return Nearest(cosines, ids)


def recall_by_value(cosines: np.ndarray, exact: np.ndarray) -> float:
    """Share of the (q, k) exact neighbours that were found; ties with the k-th count as found."""
    reached = cosines >= exact[:, -1:] - TIE
    return float(reached.sum() / exact.size)


def _order(candidates: Candidates) -> np.ndarray:
    """Places by query, then by descending cosine, then by id."""
    bits = candidates.cosines.view(np.int32).astype(np.int64)
    ascending = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    keys = (candidates.queries.astype(np.int64) << 32) - ascending
    # One sort of 64-bit keys takes a fifth of a sort by three columns; what is equal is rare.
    order = np.argsort(keys)
    keys = keys[order]
    equal = keys[1:] == keys[:-1]
    if equal.any():
        tied = np.flatnonzero(np.concatenate([equal, [False]]) | np.concatenate([[False], equal]))
        order[tied] = order[tied][np.lexsort((candidates.ids[order[tied]], keys[tied]))]
    return order


def ranks(queries: np.ndarray) -> np.ndarray:
    """(c,) place of each of the sorted (c,) values among its equals, from 0."""
    firsts = np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1]]))
    sizes = np.diff(np.append(firsts, len(queries)))
    return np.arange(len(queries)) - np.repeat(firsts[: len(sizes)], sizes)
