"""The lists of a side and the queries that probe them, read from the files of all blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ncclean.neighbour_search.block_tasks import Direction
from ncclean.neighbour_search.chunked import VALUES, chunks
from ncclean.neighbour_search.knn import order_of
from ncclean.neighbour_search.matmul import to_float32
from ncclean.neighbour_search.scratch_arrays import scratch
from ncclean.storage.array_files import ArrayFolder

_ROWS = 1024  # read at a time, into the same memory


class Vectors:
    """The distinct vectors of a side, by id, wherever the blocks' files have them."""

    def __init__(self, work: ArrayFolder, side: str) -> None:
        self.side = side
        self.bounds = np.asarray(work.load("bounds")[side])
        self.files = [work.load(f"lists-{number}") for number in range(len(self.bounds) - 1)]
        self.dim = int(self.files[0][f"{side}_vectors"].shape[1])

    def take(self, ids: np.ndarray) -> np.ndarray:
        """Read the vectors of (m,) ids -> (m, d) float32."""
        return self._gather(ids, np.empty((len(ids), self.dim), np.float32))

    def take_float16(self, ids: np.ndarray) -> np.ndarray:
        """Read the vectors of (m,) ids -> (m, d) float16, in a buffer reused by the next call."""
        return self._gather(ids, scratch("queries in float16", (len(ids), self.dim), np.float16))

    def _gather(self, ids: np.ndarray, out: np.ndarray) -> np.ndarray:
        stored = np.empty((min(len(ids), _ROWS), self.dim), np.float16)
        of_row = np.searchsorted(self.bounds, ids, side="right") - 1
        # Ascending ids, as nearly all are, lie block after block: no rows to look up.
        order = None if (of_row[1:] >= of_row[:-1]).all() else order_of(of_row, len(self.files))
        ends = np.cumsum(np.bincount(of_row, minlength=len(self.files)))
        for block, (begin, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            file = self.files[block]
            for piece in chunks(end - begin, _ROWS):
                here = slice(begin + piece.start, begin + piece.stop)
                rows = here if order is None else order[here]
                places = file[f"{self.side}_place"][ids[rows] - self.bounds[block]]
                vectors = stored[: len(places)]
                np.take(file[f"{self.side}_vectors"], places, axis=0, out=vectors, mode="clip")
                out[rows] = vectors
        return out

    def of_list(self, name: str, what: str, number: int) -> np.ndarray:
        """Gather an inverted list from the files of all blocks, in the order of ids."""
        pieces = []
        for file in self.files:
            begin, end = file[f"{name}_starts"][number : number + 2]
            pieces.append(file[f"{name}_{what}"][begin:end])
        return np.concatenate(pieces)


class InvertedList:
    """The (m,) ids of a list, ascending, and its vectors, which are read when asked for."""

    def __init__(self, index: Vectors, number: int, chosen: np.ndarray | None = None) -> None:
        self._index, self._number, self._chosen = index, number, chosen
        self.ids = self._read("ids")

    def only(self, chosen: np.ndarray) -> InvertedList:
        """The inverted list with only the chosen of its (m,) members."""
        return InvertedList(self._index, self._number, chosen)

    @property
    def vectors(self) -> np.ndarray:
        """(m, d) float32 vectors of the list's members, in a buffer reused by the next list."""
        return to_float32(self._read("vectors"), "members in float32")

    def _read(self, what: str) -> np.ndarray:
        array = self._index.of_list(self._index.side, what, self._number)
        return array if self._chosen is None else array[self._chosen]


class Probes(NamedTuple):
    """The (q,) queries that probe a list, ascending by id; which of their lists it is, from 0."""

    ids: np.ndarray
    rank: np.ndarray


def probed_lists(
    index: Vectors, queries: Vectors, direction: Direction, first: int, last: int
) -> Iterator[tuple[InvertedList, Probes]]:
    """Read inverted lists `first` to `last`, and the queries that probe each."""
    for number in range(first, last):
        probes = (queries.of_list(direction.name, what, number) for what in ("queries", "rank"))
        yield InvertedList(index, number), Probes(*probes)


_BITS = np.left_shift(1, np.arange(8)).astype(np.uint8)

Probe = tuple[InvertedList, np.ndarray]  # a list, and the ascending ids of queries that visit it


@dataclass(frozen=True)
class Batch:
    """Lists with the queries that probe them, and the (q,) ascending ids of all of these."""

    probes: list[Probe]
    queries: np.ndarray

    @property
    def comparisons(self) -> int:
        """Number of comparisons of queries with list members in the batch."""
        return sum(len(members.ids) * len(asking) for members, asking in self.probes)


def batches(probed_lists: Iterable[Probe], room: int, count: int) -> Iterator[Batch]:
    """Split the probes of lists into batches of at most `room` different queries."""
    batch: list[Probe] = []
    seen = IdSet(count)
    for members, ids in probed_lists:
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
        """Count how many of (m,) different ids are not in the set."""
        return len(ids) - int(np.count_nonzero(self._bits[ids >> 3] & _BITS[ids & 7]))

    def add(self, ids: np.ndarray) -> None:
        """Add (m,) different ids to the set."""
        self._size += self.fresh(ids)
        np.bitwise_or.at(self._bits, ids >> 3, _BITS[ids & 7])

    def ids(self) -> np.ndarray:
        """The ids in the set, ascending."""
        ids = np.empty(self._size, np.int32)
        begin = 0
        for piece in chunks(len(self._bits), VALUES):
            some = np.flatnonzero(np.unpackbits(self._bits[piece], bitorder="little"))
            ids[begin : begin + len(some)] = some + 8 * piece.start
            begin += len(some)
        return ids
