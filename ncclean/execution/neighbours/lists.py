"""Consecutive lists of a side, read from the files of all blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ncclean.execution.neighbours.passes import Direction, chunks
from ncclean.scoring.neighbours.memory import kept
from ncclean.scoring.neighbours.search import order_of
from ncclean.storage.array_files import ArrayFolder

_ROWS = 1024  # read at a time, into the same memory


@dataclass(frozen=True)
class Members:
    """The (m,) ids and (m, d) float16 vectors of a list, ascending by id."""

    ids: np.ndarray
    stored: np.ndarray

    @property
    def vectors(self) -> np.ndarray:
        """(m, d) float32, made when they are asked for."""
        return self.stored.astype(np.float32)


class Vectors:
    """The distinct vectors of a side, by id, wherever the blocks' files have them."""

    def __init__(self, work: ArrayFolder, side: str) -> None:
        self.side = side
        self.bounds = np.asarray(work.load("bounds")[side])
        self.files = [work.load(f"route-{number}") for number in range(len(self.bounds) - 1)]

    def take(self, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """(m,) ids -> (m, d) float32, in `out` if it is given."""
        width = self.files[0][f"{self.side}_vectors"].shape[1]
        gathered = np.empty((len(ids), width), np.float32) if out is None else out[: len(ids)]
        stored = np.empty((min(len(ids), _ROWS), width), np.float16)
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
                gathered[rows] = vectors
        return gathered

    def kept(self, ids: np.ndarray) -> np.ndarray:
        """The same, in memory that the next call uses again."""
        width = self.files[0][f"{self.side}_vectors"].shape[1]
        return self.take(ids, kept("queries in float32", (len(ids), width), np.float32))

    def lists(self, first: int, last: int) -> Iterator[Members]:
        """Lists `first` to `last`, each whole; all of them are held in float16."""
        blocks = [
            (file[f"{self.side}_starts"], file[f"{self.side}_ids"], file[f"{self.side}_vectors"])
            for file in self.files
        ]
        pieces = [slice(int(starts[first]), int(starts[last])) for starts, _, _ in blocks]
        vectors = np.concatenate(
            [one[piece] for (_, _, one), piece in zip(blocks, pieces, strict=True)]
        )
        ids = np.concatenate(
            [one[piece] for (_, one, _), piece in zip(blocks, pieces, strict=True)]
        )
        order, ends = _by_list([starts[first : last + 1] for starts, _, _ in blocks])
        for begin, end in itertools.pairwise(ends):
            rows = order[begin:end]
            yield Members(ids[rows], vectors[rows])


@dataclass(frozen=True)
class Visitors:
    """The (q,) queries that visit a list, ascending by id; which of their lists it is, from 0."""

    ids: np.ndarray
    rank: np.ndarray


def visits(
    index: Vectors, queries: Vectors, direction: Direction, first: int, last: int
) -> Iterator[tuple[Members, Visitors]]:
    """Lists `first` to `last` of the index, and who visits each."""
    return zip(index.lists(first, last), visitors(queries, direction, first, last), strict=True)


def visitors(vectors: Vectors, direction: Direction, first: int, last: int) -> Iterator[Visitors]:
    """Who visits lists `first` to `last`; `vectors` are those of the queries' side."""
    name = direction.name
    blocks = [
        (file[f"{name}_starts"], file[f"{name}_queries"], file[f"{name}_rank"])
        for file in vectors.files
    ]
    pieces = [slice(int(starts[first]), int(starts[last])) for starts, _, _ in blocks]
    ids = np.concatenate([one[piece] for (_, one, _), piece in zip(blocks, pieces, strict=True)])
    rank = np.concatenate([one[piece] for (_, _, one), piece in zip(blocks, pieces, strict=True)])
    order, ends = _by_list([starts[first : last + 1] for starts, _, _ in blocks])
    for begin, end in itertools.pairwise(ends):
        rows = order[begin:end]
        yield Visitors(ids[rows], rank[rows])


def _by_list(starts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Places in the concatenated blocks, list by list and in the order of blocks; list ends.

    `starts` are, by block, where its lists begin; blocks have ascending ids.
    """
    sizes = np.stack([np.diff(one) for one in starts])  # (blocks, lists)
    count = sizes.shape[1]
    numbers = np.arange(count, dtype=np.uint16 if count <= 1 << 16 else np.int32)
    lists = np.concatenate([np.repeat(numbers, of_block) for of_block in sizes])
    return order_of(lists, count), np.concatenate([[0], np.cumsum(sizes.sum(axis=0))])
