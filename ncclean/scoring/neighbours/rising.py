"""The k nearest of queries among lists that come one by one, with floors that rise.

A member counts only if it reaches the k-th cosine found so far. Few do once the first lists have
been seen, so most products are compared with one number and forgotten.
"""

from __future__ import annotations

import numpy as np

from ncclean.scoring.neighbours.products import Reached
from ncclean.scoring.neighbours.search import Candidates, Nearest

# A cosine and an id in one integer, which a partition orders by cosine, then by id, the smaller id
# first. The last bit tells what was known before.
_LARGEST_ID = np.int64(0x7FFFFFFF)
_MISSING = np.iinfo(np.int64).min
_FEW = 6


class RisingNearest:
    """Holds the k nearest of (s,) queries; `known` (s, k) those of their own lists."""

    @classmethod
    def unknown(cls, count: int, k: int) -> RisingNearest:
        """Of so many queries of which no list has been seen."""
        shape = (count, k)
        return cls(Nearest(np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int32)))

    def __init__(self, known: Nearest) -> None:
        self._keys = np.where(known.ids >= 0, _keys(known.cosines, known.ids) | 1, _MISSING)
        self._keys.partition(0, axis=1)  # the k-th first
        self._floors = _cosines(self._keys[:, 0])

    def floors(self, rows: np.ndarray) -> np.ndarray:
        """(q,) cosines that a member must reach to be among the k nearest of these queries."""
        floors: np.ndarray = self._floors[rows]
        return floors

    def add(self, rows: np.ndarray, reached: Reached, ids: np.ndarray) -> None:
        """Take what reached the floors of (q,) queries, by row, among the (m,) ids of a list."""
        counts = np.bincount(reached.rows, minlength=len(rows))
        asked = np.flatnonzero(counts)
        if not len(asked):
            return
        rows, counts = rows[asked], counts[asked]
        keys = _keys(reached.cosines, ids[reached.places])
        # Most rows have few new ones, and need not be filled up to what some have.
        is_few = counts <= _FEW
        of_few = np.repeat(is_few, counts)
        self._merge(rows[is_few], counts[is_few], keys[of_few])
        self._merge(rows[~is_few], counts[~is_few], keys[~of_few])

    def _merge(self, rows: np.ndarray, counts: np.ndarray, keys: np.ndarray) -> None:
        """Take (c,) keys by row, so many of each of the (r,) rows."""
        if not len(rows):
            return
        rank = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
        most, k = int(counts.max()), self._keys.shape[1]
        merged = np.full((len(rows), k + most), _MISSING)
        merged[:, :k] = self._keys[rows]
        merged[np.repeat(np.arange(len(rows)), counts), k + rank] = keys
        merged.partition(most, axis=1)
        self._keys[rows] = merged[:, most:]
        self._floors[rows] = _cosines(merged[:, most])

    def nearest(self) -> Nearest:
        """The (s, k) nearest so far, known and new."""
        keys = np.sort(self._keys, axis=1)[:, ::-1]
        return Nearest(_cosines(keys), np.where(keys == _MISSING, np.int32(-1), _ids(keys)))

    def found(self, queries: np.ndarray) -> Candidates:
        """What was not known before and is among the k nearest, of all (s,) queries by their id."""
        row, place = np.nonzero((self._keys & 1 == 0) & (self._keys != _MISSING))
        keys = self._keys[row, place]
        return Candidates(queries[row], _ids(keys), _cosines(keys))


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
