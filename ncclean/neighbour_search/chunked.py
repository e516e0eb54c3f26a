"""Arrays with a value for each pair, which lie in mapped files and are worked on chunk by chunk.

None of this holds more than a chunk in memory: sorting by small integers, the first row with an
equal key, disjoint sets, counts. Row numbers are int32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ncclean.storage.array_files import ArrayFolder

CHUNK_ROWS = 4096  # of vectors
VALUES = 1 << 18  # of numbers
Keys = Callable[[], Iterable[np.ndarray]]  # (m, 2) uint64 chunks of all rows in order, each time
_MIXED = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # odd, so bits spread


def chunks(count: int, size: int = CHUNK_ROWS) -> Iterator[slice]:
    """Consecutive slices that cover `count` rows."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def add_counts(counts: np.ndarray, numbers: np.ndarray) -> None:
    """Count occurrences of the numbers 0 to g - 1, added to (g,) `counts`."""
    for rows in chunks(len(numbers), VALUES):
        values, times = np.unique(numbers[rows], return_counts=True)
        counts[values] += times.astype(counts.dtype)


def exclusive_sums(sizes: np.ndarray, out: np.ndarray) -> None:
    """Write to (g,) `out` the exclusive prefix sums of (g,) sizes, offsets of groups."""
    total = 0
    for rows in chunks(len(sizes), VALUES):
        ends = np.cumsum(sizes[rows], dtype=np.int64) + total
        out[rows] = ends - sizes[rows]
        total = int(ends[-1])


def take_places(numbers: np.ndarray, next_place: np.ndarray) -> np.ndarray:
    """Next (m,) places of a chunk of rows in a stable sort of all rows by small numbers.

    `next_place` (g,) is where the next row with each number goes, and moves on.
    """
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    values, counts = ordered[starts], np.diff(starts, append=len(ordered))
    places = np.empty(len(numbers), np.int64)
    places[order] = np.arange(len(numbers)) + np.repeat(next_place[values] - starts, counts)
    next_place[values] += counts
    return places


def first_rows(work: ArrayFolder, keys: Keys, first: np.ndarray) -> None:
    """Write to (n,) `first`, for each row, the first row with an equal key.

    Rows are divided by hash, so that one division of them is sorted at a time.
    """
    count = len(first)
    divisions = -(-count // VALUES)
    sizes = np.zeros(divisions, np.int64)
    for chunk in keys():
        add_counts(sizes, _division(chunk, divisions))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    place, row = starts[:-1].copy(), 0
    with work.scratch({"keys": ((count, 2), np.uint64), "rows": ((count,), np.int32)}) as divided:
        for chunk in keys():
            places = take_places(_division(chunk, divisions), place)
            divided["keys"][places] = chunk
            divided["rows"][places] = np.arange(row, row + len(chunk))
            row += len(chunk)
        for begin, end in itertools.pairwise(starts.tolist()):
            seen, seen_first = np.empty((0, 2), np.uint64), np.empty(0, np.int32)
            for piece in chunks(end - begin, 4 * VALUES):  # of one key there may be many
                here = slice(begin + piece.start, begin + piece.stop)
                rows = divided["rows"][here]
                seen, seen_first, first[rows] = _first(
                    np.concatenate([seen, divided["keys"][here]]),
                    np.concatenate([seen_first, rows]),
                    len(seen),
                )


def _division(keys: np.ndarray, divisions: int) -> np.ndarray:
    mixed = (keys * _MIXED).sum(axis=1, dtype=np.uint64) * _MIXED[0]
    high: np.ndarray = (mixed >> np.uint64(32)) * np.uint64(divisions)
    numbers: np.ndarray = (high >> np.uint64(32)).astype(np.int64)
    return numbers


def _first(
    keys: np.ndarray, rows: np.ndarray, seen: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct keys, the first row of each, and that of each key but those `seen` before."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    is_new = np.ones(len(keys), dtype=bool)
    np.any(ordered[1:] != ordered[:-1], axis=1, out=is_new[1:])
    firsts = rows[order[is_new]]
    of_each = np.empty(len(keys), np.int32)
    of_each[order] = firsts[np.cumsum(is_new) - 1]
    return ordered[is_new], firsts, of_each[seen:]


class DisjointSets:
    """Sets of rows that are joined by pairs; (n,) `parent` begins as each row itself."""

    def __init__(self, parent: np.ndarray) -> None:
        self._parent = parent
        for rows in chunks(len(parent), VALUES):
            parent[rows] = np.arange(rows.start, rows.stop)

    def join(self, one: np.ndarray, other: np.ndarray) -> None:
        """Merge the sets of (m,) rows with the sets of (m,) other rows (union-find)."""
        while True:
            one, other = self._find(one), self._find(other)
            apart = one != other
            if not apart.any():
                return
            one, other = one[apart], other[apart]
            np.minimum.at(self._parent, np.maximum(one, other), np.minimum(one, other))

    def finish(self) -> None:
        """Make every row's `parent` the first row of its set."""
        for rows in chunks(len(self._parent), VALUES):
            self._find(np.arange(rows.start, rows.stop))

    def _find(self, rows: np.ndarray) -> np.ndarray:
        """The first row of the set of each, as far as they are joined; paths are halved."""
        while True:
            above: np.ndarray = self._parent[rows]
            higher = self._parent[above]
            if np.array_equal(above, higher):
                return above
            self._parent[rows] = higher
