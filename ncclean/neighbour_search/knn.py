"""The nearest members of lists, list by list, as matrix products.

A query is compared with its nearest list first. The k-th cosine found there is the top of the
query's heap, which rises with each list: only members that reach it can be among the k nearest, so
few cosines are kept. This is exact for the lists probed, and the order is that of cosines, then of
ids: the result depends neither on how lists are divided among tasks nor on the order of the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ncclean.neighbour_search.list_scanner import Hits, TopK, places_within
from ncclean.neighbour_search.matmul import fastest_matmul

# Cosines of float32 products that differ by less are ties.
TIE = 1e-6
QUERY_ROWS = 1024
_BLOCK_VALUES = 1 << 25  # 128 MB of products


@dataclass(frozen=True)
class Nearest:
    """Neighbours of q queries: (q, k) float32 cosines, descending; int32 ids, -1 if missing."""

    cosines: np.ndarray
    ids: np.ndarray


def nearest_in_list(
    queries: np.ndarray, members: np.ndarray, ids: np.ndarray, k: int, itself: np.ndarray | None
) -> Nearest:
    """The k nearest of a list's (m, d) members for each of (q, d) queries.

    `itself` (q,) are the ids of the queries where they are among the members.
    """
    cosines = np.full((len(queries), k), -np.inf, dtype=np.float32)
    near = np.full((len(queries), k), -1, dtype=np.int32)
    count = min(k, len(ids) - (itself is not None))
    width = count + (itself is not None)
    if not width or not len(queries):
        return Nearest(cosines, near)
    top = TopK(members, fastest_matmul(len(queries) * len(ids)))
    for rows in query_blocks(len(queries), len(ids)):
        places, values = top.search(queries[rows], width)
        if itself is not None:
            is_itself = ids[places] == itself[rows, None]
            at = np.where(is_itself.any(axis=1), is_itself.argmax(axis=1), count)
            columns = np.arange(count)
            others = columns + (columns >= at[:, None])
            places, values = (np.take_along_axis(one, others, axis=1) for one in (places, values))
        cosines[rows, :count], near[rows, :count] = values, ids[places]
    return Nearest(cosines, near)


def query_blocks(queries: int, members: int) -> Iterator[slice]:
    """Split queries so that the products of a block with a long list fit into memory."""
    rows = block_rows(members)
    for start in range(0, queries, rows):
        yield slice(start, start + rows)


def block_rows(members: int) -> int:
    """Number of queries to compare with a list of so many members at a time."""
    return min(QUERY_ROWS, max(_BLOCK_VALUES // max(members, 1), 1))


def order_of(numbers: np.ndarray, count: int) -> np.ndarray:
    """Stable argsort of (n,) numbers below `count`; 16-bit numbers take a tenth of the time."""
    small = np.uint16 if count <= 1 << 16 else np.int64
    return np.argsort(numbers.astype(small, copy=False), kind="stable")


def recall_by_value(cosines: np.ndarray, exact: np.ndarray) -> float:
    """Share of the (q, k) exact neighbours that were found; ties with the k-th count as found."""
    reached = cosines >= exact[:, -1:] - TIE
    return float(reached.sum() / exact.size)


# A cosine and an id in one integer, in the order of cosines, then of ids, the smaller id last. The
# last bit marks those of the first lists. Where one is missing, the smallest.
_LARGEST_ID = np.int64(0x7FFFFFFF)
_MISSING = np.int64(np.iinfo(np.int64).min | 1)
_FEW = 6
_ROWS = 1 << 14  # looked through at a time


class Heaps:
    """The k nearest of (s,) queries, while lists come one by one.

    `keys` (s, k) are the `heap_keys` of those of their first lists, and are written to.
    """

    @classmethod
    def empty(cls, count: int, k: int) -> Heaps:
        """No neighbours yet for `count` queries."""
        return cls(np.full((count, k), _MISSING))

    def __init__(self, keys: np.ndarray) -> None:
        self._keys = keys
        self._thresholds = _cosines(keys[:, 0])

    def thresholds(self, rows: np.ndarray) -> np.ndarray:
        """(q,) cosines that a member must reach to enter the heap of each query."""
        thresholds: np.ndarray = self._thresholds[rows]
        return thresholds

    def add(self, rows: np.ndarray, hits: Hits, ids: np.ndarray) -> None:
        """Add the members of a list that reach the thresholds of (q,) queries to their heaps."""
        self.merge(rows[hits.rows], _keys(hits.cosines, ids[hits.places]))

    def merge(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """Add (c,) keys to the heaps of (c,) rows, the keys of one row being consecutive."""
        if not len(rows):
            return
        begins = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
        counts = np.diff(begins, append=len(rows))
        rows = rows[begins]
        # Most rows have few new ones, and need not be filled up to what some have.
        is_few = counts <= _FEW
        of_few = np.repeat(is_few, counts)
        self._merge(rows[is_few], counts[is_few], keys[of_few])
        self._merge(rows[~is_few], counts[~is_few], keys[~of_few])

    def _merge(self, rows: np.ndarray, counts: np.ndarray, keys: np.ndarray) -> None:
        """Add (c,) keys by row, `counts` of them to each of the (r,) rows."""
        if not len(rows):
            return
        rank = places_within(counts)
        most, k = int(counts.max()), self._keys.shape[1]
        merged = np.full((len(rows), k + most), _MISSING)
        merged[:, :k] = self._keys[rows]
        merged[np.repeat(np.arange(len(rows)), counts), k + rank] = keys
        merged.partition(most, axis=1)
        self._keys[rows] = merged[:, most:]
        self._thresholds[rows] = _cosines(merged[:, most])

    def nearest(self) -> Nearest:
        """The (s, k) nearest neighbours found so far."""
        keys = np.sort(self._keys, axis=1)[:, ::-1]
        return Nearest(_cosines(keys), np.where(keys == _MISSING, np.int32(-1), _ids(keys)))

    def added(self) -> tuple[np.ndarray, np.ndarray]:
        """(c,) rows and keys of the k nearest that did not come from the first lists."""
        count, k = self._keys.shape
        rows, keys = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for begin in range(0, count, _ROWS):
            some = self._keys[begin : begin + _ROWS].ravel()
            new = np.flatnonzero(some & 1 == 0)
            rows.append(begin + new // k)
            keys.append(some[new])
        return np.concatenate(rows), np.concatenate(keys)


def heap_keys(nearest: Nearest) -> np.ndarray:
    """(s, k) heap keys of the neighbours found in the first lists, the k-th nearest first."""
    keys = np.where(nearest.ids >= 0, _keys(nearest.cosines, nearest.ids) | 1, _MISSING)
    return keys[:, ::-1]


def _keys(cosines: np.ndarray, ids: np.ndarray) -> np.ndarray:
    keys: np.ndarray = _ordered(cosines.view(np.int32)).astype(np.int64)
    keys <<= 32
    keys += (_LARGEST_ID - ids) << 1
    return keys


def _ids(keys: np.ndarray) -> np.ndarray:
    ids: np.ndarray = (_LARGEST_ID - ((keys & 0xFFFFFFFF) >> 1)).astype(np.int32)
    return ids


def _ordered(bits: np.ndarray) -> np.ndarray:
    """int32 bits of float32 numbers as integers in their order, and back."""
    ordered: np.ndarray = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ordered


def _cosines(keys: np.ndarray) -> np.ndarray:
    """The float32 cosines of keys; minus infinity for what is missing."""
    cosines = _ordered((keys >> 32).astype(np.int32)).view(np.float32)
    return np.where(keys == _MISSING, np.float32(-np.inf), cosines)
