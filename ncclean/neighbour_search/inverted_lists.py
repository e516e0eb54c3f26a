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
    """The k nearest neighbours of q queries: (q, k) float32 cosines, descending, and int32 ids.

    Where there are fewer, the id is -1 and the cosine minus infinity.
    """

    cosines: np.ndarray
    ids: np.ndarray

    def without(self, queries: np.ndarray) -> Nearest:
        """Return the first k - 1 neighbours of each query other than itself.

        `queries` (q,) are the queries' ids.
        """
        itself = self.ids == queries[:, None]
        keep = np.argsort(itself, axis=1, kind="stable")[:, :-1]
        return Nearest(*(np.take_along_axis(one, keep, axis=1) for one in self))


class NearestHeap:
    """Collects the k nearest neighbours of (q, d) queries among vectors that come in pieces."""

    def __init__(self, queries: np.ndarray, k: int) -> None:
        self._queries = queries
        self._heap = faiss.ResultHeap(len(queries), k, keep_max=True)

    def add(self, vectors: np.ndarray, ids: np.ndarray, visiting: np.ndarray | None = None) -> None:
        """Compare (m, d) vectors with all queries, or with those at the places `visiting`.

        `ids` (m,) are the vectors' ids.
        """
        visiting = np.arange(len(self._queries)) if visiting is None else visiting
        count = min(self._heap.k, len(vectors))
        if count and len(visiting):
            cosines, places = inner_knn(self._queries[visiting], vectors, count)
            self._heap.add_result_subset(visiting, cosines, ids[places])

    def nearest(self) -> Nearest:
        """Return the nearest neighbours in all pieces; it can be called once only."""
        self._heap.finalize()
        ids = self._heap.I.astype(np.int32)
        return Nearest(np.where(ids < 0, np.float32(-np.inf), self._heap.D), ids)


def inner_knn(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k <= m largest inner products of each of (q, d) with (m, d) vectors: (q, k) each.

    Returns the products, descending, and the indices of the vectors.
    """
    neighbours: tuple[np.ndarray, np.ndarray] = faiss.knn(
        queries.astype(np.float32, copy=False), vectors.astype(np.float32, copy=False), k,
        metric=faiss.METRIC_INNER_PRODUCT,
    )  # fmt: skip
    return neighbours


def nlist_for(vectors: int) -> int:
    """Return a number of inverted lists: a power of two near 2 sqrt(n).

    It is smaller where lists would have fewer than about 32 vectors.
    """
    wanted = min(2 * vectors**0.5, vectors / 32)
    return int(2 ** max(0, round(np.log2(max(wanted, 1)))))


def likely_nprobe(lists: int) -> int:
    """Return an upper estimate of nprobe, the number of lists that a query visits."""
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
    """Return (m, p) int32 numbers of the lists nearest to (m, d) unit vectors, nearest first.

    p is `probes`, or the number of lists if there are fewer.
    """
    probes = min(probes, len(centroids))
    assigned = np.empty((len(vectors), probes), np.int32)
    for rows in chunks(len(vectors)):
        assigned[rows] = inner_knn(vectors[rows], centroids, probes)[1]
    return assigned


@dataclass(frozen=True)
class InvertedLists:
    """An inverted file of u vectors, the distinct images or captions of a corpus, in L lists.

    `centroids` (L, d) are the lists' centroids, `vectors` (u, d) are sorted by list, `starts` (L +
    1,) is where each list starts, `ids` (u,) are the vectors' ids in that order, and `place` (u,)
    is the row of each id.
    """

    centroids: np.ndarray
    vectors: np.ndarray
    starts: np.ndarray
    ids: np.ndarray
    place: np.ndarray

    @classmethod
    def load(cls, work: ArrayFolder, side: str) -> InvertedLists:
        """Map the inverted file of the images, or captions, of a corpus."""
        centroids, by_list = work.load("learnt")[f"{side}_lists"], work.load(f"by-list-{side}")
        starts = np.searchsorted(by_list["list"], np.arange(len(centroids) + 1, dtype=np.int32))
        return cls(centroids, starts=starts, ids=by_list["row"], **work.load(f"lists-{side}"))

    def __len__(self) -> int:
        return len(self.ids)

    def list_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the list that holds the vector of each id, in an array of the same shape."""
        lists: np.ndarray = np.searchsorted(self.starts, self.place[ids], side="right") - 1
        return lists

    def read(self, rows: slice) -> np.ndarray:
        """Return consecutive vectors in the order of lists, (m, d) float32."""
        return self.vectors[rows].astype(np.float32)

    def take(self, ids: np.ndarray) -> np.ndarray:
        """Return the vectors with (m,) ids, (m, d) float32."""
        vectors: np.ndarray = self.vectors[self.place[ids]].astype(np.float32)
        return vectors

    def probed(self, queries: np.ndarray, nprobe: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the visited lists in pieces: rows of a list, and the (a,) queries that visit it.

        `queries` are (q, d); each visits the `nprobe` nearest lists.
        """
        lists = nearest_lists(queries, self.centroids, nprobe)
        order = np.argsort(lists, axis=None, kind="stable")
        by_list = order // lists.shape[1]
        ends = np.concatenate([[0], np.cumsum(np.bincount(lists.ravel()))])
        for number in np.flatnonzero(np.diff(ends)):
            begin, end = self.starts[number : number + 2].tolist()
            for rows in chunks(end - begin, _MEMBERS):
                list_rows = slice(begin + rows.start, begin + rows.stop)
                yield list_rows, by_list[ends[number] : ends[number + 1]]

    def search(self, queries: np.ndarray, k: int, nprobe: int) -> Nearest:
        """Return the k nearest neighbours of (q, d) queries in their `nprobe` nearest lists."""
        heap = NearestHeap(queries, k)
        for rows, visiting in self.probed(queries, nprobe):
            heap.add(self.read(rows), self.ids[rows], visiting)
        return heap.nearest()


def task_rows(count: int, dim: int, k: int, nprobe: int, memory_bytes: int) -> list[slice]:
    """Cut `count` queries in the order of lists into tasks that fit into `memory_bytes` each.

    The cut does not depend on how many tasks run at a time, as it affects the last digits of
    results.
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
    """Search the k nearest neighbours of one task's queries, and write them to a file.

    `rows` are the queries, vectors of the query side in the order of lists. A query is not its own
    neighbour.
    """
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
    """Return the (q,) ascending ids of a task's queries, and their k nearest neighbours.

    They are read from the file of `search_lists`.
    """
    file = work.load(f"near-{direction.name}-{number}")
    return file["rows"], Nearest(file["cosines"], file["ids"])
