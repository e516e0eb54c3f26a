"""Store the inverted lists of a side's vectors in a mapped file, and search them with FAISS.

They correspond to an `IndexIVFScalarQuantizer` with float16 codes, like the vectors, but need not
fit into memory. Each list is multiplied with all queries that probe it at once, as in
`faiss.contrib.big_batch_search`: several times as fast on a CPU as query by query.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import faiss
import numpy as np

from ncclean.neighbour_search.corpus import Direction
from ncclean.neighbour_search.stages import chunks
from ncclean.storage.array_files import ArrayFolder

if sys.platform == "darwin":
    # If torch or scikit-learn have loaded another OpenMP runtime, FAISS crashes as soon as it
    # starts threads; one thread is safe.
    faiss.omp_set_num_threads(1)

TRAINING_ROWS_PER_LIST = 64
TIE = 1e-6  # cosines that differ by less are ties
_ITERATIONS = 10
_MEMBERS = 1 << 13  # rows of a list compared at a time, in float32
# Lists that a search probes: a recall of .95 took up to 18 of 2,048, 33 of 4,096.
_LIKELY_NPROBE, _SHARE_VISITED = 32, 1 / 96
MAX_NPROBE = 256  # with any recall
# The share of a task's memory for its query vectors; the rest is for lists.
_OF_QUERIES = 0.5
_SMALL, _MOST_SMALL = 20_000, 64  # rows that justify a task, up to this many tasks


class Nearest(NamedTuple):
    """Neighbours of q queries: (q, k) float32 cosines, descending; int32 ids, -1 if missing."""

    cosines: np.ndarray
    ids: np.ndarray

    def without(self, queries: np.ndarray) -> Nearest:
        """Return the first k - 1 neighbours of each of the (q,) queries, without itself."""
        itself = self.ids == queries[:, None]
        keep = np.argsort(itself, axis=1, kind="stable")[:, :-1]
        return Nearest(*(np.take_along_axis(one, keep, axis=1) for one in self))


class NearestHeap:
    """The k nearest neighbours of q queries among vectors that come in pieces."""

    def __init__(self, queries: np.ndarray, k: int) -> None:
        self._queries = queries
        self._heap = faiss.ResultHeap(len(queries), k, keep_max=True)

    def add(self, vectors: np.ndarray, ids: np.ndarray, asking: np.ndarray | None = None) -> None:
        """Compare the queries, or those at the places `asking`, with (m, d) vectors."""
        asking = np.arange(len(self._queries)) if asking is None else asking
        count = min(self._heap.k, len(vectors))
        if count and len(asking):
            cosines, places = inner_knn(self._queries[asking], vectors, count)
            self._heap.add_result_subset(asking, cosines, ids[places])

    def nearest(self) -> Nearest:
        """Return the nearest of all pieces; call this once, at the end."""
        self._heap.finalize()
        ids = self._heap.I.astype(np.int32)
        return Nearest(np.where(ids < 0, np.float32(-np.inf), self._heap.D), ids)


def inner_knn(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k <= m largest inner products of (q, d) with (m, d) vectors, and their places."""
    neighbours: tuple[np.ndarray, np.ndarray] = faiss.knn(
        queries.astype(np.float32, copy=False), vectors.astype(np.float32, copy=False), k,
        metric=faiss.METRIC_INNER_PRODUCT,
    )  # fmt: skip
    return neighbours


def nlist_for(vectors: int) -> int:
    """Number of inverted lists: a power of two near 2 sqrt(n), at least 32 vectors a list."""
    wanted = min(2 * vectors**0.5, vectors / 32)
    return int(2 ** max(0, round(np.log2(max(wanted, 1)))))


def likely_nprobe(lists: int) -> int:
    """An upper estimate of nprobe, the number of lists that a query visits."""
    return min(MAX_NPROBE, max(_LIKELY_NPROBE, round(_SHARE_VISITED * lists)), lists)


def train_lists(sample: np.ndarray, lists: int, seed: int) -> np.ndarray:
    """Train at most `lists` (L, d) centroids by spherical k-means on (m, d) float32 unit vectors.

    Uses two levels, at a fraction of the cost of one: groups of lists, then the lists of each group
    on its own vectors. Lists of one group have consecutive numbers, so similar vectors are close in
    a file.
    """
    lists = min(lists, len(sample))
    groups = _kmeans(sample, max(1, round(lists**0.5)), seed)
    of_group = nearest_lists(sample, groups, 1)[:, 0]
    sizes = np.bincount(of_group, minlength=len(groups))
    wanted = np.diff(np.round(np.cumsum(sizes) * lists / len(sample)).astype(int), prepend=0)
    return np.concatenate([
        _kmeans(sample[of_group == number], int(min(max(want, 1), size)), seed)
        for number, (want, size) in enumerate(zip(wanted, sizes, strict=True))
        if size
    ])  # fmt: skip


def _kmeans(sample: np.ndarray, count: int, seed: int) -> np.ndarray:
    kmeans = faiss.Kmeans(
        sample.shape[1], count, niter=_ITERATIONS, spherical=True, seed=seed + 1,
        min_points_per_centroid=1, max_points_per_centroid=1 << 20,
    )  # fmt: skip
    kmeans.train(sample)
    return np.asarray(kmeans.centroids).reshape(count, -1)


def nearest_lists(vectors: np.ndarray, centroids: np.ndarray, probes: int) -> np.ndarray:
    """(m, p) int32 numbers of the lists nearest to (m, d) unit vectors, nearest first.

    p is `probes`, or the number of lists where there are fewer.
    """
    probes = min(probes, len(centroids))
    assigned = np.empty((len(vectors), probes), np.int32)
    for rows in chunks(len(vectors)):
        assigned[rows] = inner_knn(vectors[rows], centroids, probes)[1]
    return assigned


@dataclass(frozen=True)
class InvertedLists:
    """The u vectors of a side by list.

    `centroids` (L, d), `vectors` (u, d) in the order of lists, `starts` (L + 1,) of the lists
    there, `ids` (u,) of the vectors in that order, and `place` (u,) the row of each id.
    """

    centroids: np.ndarray
    vectors: np.ndarray
    starts: np.ndarray
    ids: np.ndarray
    place: np.ndarray

    @classmethod
    def load(cls, work: ArrayFolder, side: str) -> InvertedLists:
        """The distinct images or captions of a corpus."""
        centroids, by_list = work.load("learnt")[f"{side}_lists"], work.load(f"by-list-{side}")
        starts = np.searchsorted(by_list["list"], np.arange(len(centroids) + 1, dtype=np.int32))
        return cls(centroids, starts=starts, ids=by_list["row"], **work.load(f"lists-{side}"))

    def __len__(self) -> int:
        return len(self.ids)

    def list_of(self, ids: np.ndarray) -> np.ndarray:
        """The lists that vectors of these ids are in, in an array of the same shape."""
        lists: np.ndarray = np.searchsorted(self.starts, self.place[ids], side="right") - 1
        return lists

    def read(self, rows: slice) -> np.ndarray:
        """Consecutive vectors in the order of lists, (m, d) float32."""
        return self.vectors[rows].astype(np.float32)

    def take(self, ids: np.ndarray) -> np.ndarray:
        """The vectors of (m,) ids, (m, d) float32."""
        vectors: np.ndarray = self.vectors[self.place[ids]].astype(np.float32)
        return vectors

    def probed(self, queries: np.ndarray, nprobe: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield rows of each visited list, some at a time, with the (a,) queries that visit it."""
        asking = nearest_lists(queries, self.centroids, nprobe)
        order = np.argsort(asking, axis=None, kind="stable")
        by_list = order // asking.shape[1]
        ends = np.concatenate([[0], np.cumsum(np.bincount(asking.ravel()))])
        for number in np.flatnonzero(np.diff(ends)):
            begin, end = self.starts[number : number + 2].tolist()
            for rows in chunks(end - begin, _MEMBERS):
                here = slice(begin + rows.start, begin + rows.stop)
                yield here, by_list[ends[number] : ends[number + 1]]

    def search(self, queries: np.ndarray, k: int, nprobe: int) -> Nearest:
        """The k nearest of (q, d) queries in the lists that they visit."""
        heap = NearestHeap(queries, k)
        for rows, asking in self.probed(queries, nprobe):
            heap.add(self.read(rows), self.ids[rows], asking)
        return heap.nearest()


def task_rows(count: int, dim: int, k: int, nprobe: int, memory_bytes: int) -> list[slice]:
    """Cut `count` rows in the order of lists into tasks that fit into this much memory.

    The cut does not depend on how many tasks run at a time: it affects the last digits of results.
    """
    # In float32: the vectors, those that visit a list, the lists, and the results.
    of_a_row = 3 * 4 * dim + 20 * nprobe + 40 * (k + 1)
    tasks = max(
        -(-count * of_a_row // int(_OF_QUERIES * memory_bytes)),
        min(_MOST_SMALL, -(-count // _SMALL)),
    )
    bounds = (count * np.arange(tasks + 1) // tasks).tolist()
    return [slice(*ends) for ends in itertools.pairwise(bounds)]


def search_lists(
    work: ArrayFolder, number: int, direction: Direction, rows: slice, k: int, nprobe: int
) -> None:
    """Search the k nearest of some query-side vectors, excluding the query itself."""
    index, queries = (InvertedLists.load(work, side) for side in (direction.index, direction.query))
    ids = queries.ids[rows]
    if direction.is_within:
        nearest = index.search(queries.read(rows), k + 1, nprobe).without(ids)
    else:
        nearest = index.search(queries.read(rows), k, nprobe)
    order = np.argsort(ids)
    columns = {"rows": ids, **nearest._asdict()}
    work.save(
        f"near-{direction.name}-{number}", {name: values[order] for name, values in columns.items()}
    )


def nearest_of(work: ArrayFolder, direction: Direction, number: int) -> tuple[np.ndarray, Nearest]:
    """Return the (q,) ascending ids of a task's queries, and the k nearest neighbours of each."""
    file = work.load(f"near-{direction.name}-{number}")
    return file["rows"], Nearest(file["cosines"], file["ids"])
