"""FAISS indexes over L2-normalised vectors, and how much of the exact answer they find.

Vectors are kept as float16, which loses nothing since they were stored so (the flat index takes
float32). `flat` compares with everything. `ivf` compares with the vectors of the nearest lists of
a k-means partition; its result does not depend on the number of threads. `hnsw` walks a graph
that several threads build in no fixed order: its result varies from run to run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from ncclean.errors import InputError
from ncclean.scoring.neighbours.matrix import CHUNK_ROWS, Rows, Tick, silent

EXACT_BELOW = 100_000
# Cosines of float32 products that differ by less are ties.
TIE = 1e-6
_TRAINING_ROWS_PER_LIST = 64
_ITERATIONS = 10
_GRAPH_DEGREE = 32
_FIRST_EFFORT = {"ivf": 4, "hnsw": 32}
_LAST_EFFORT = {"ivf": 256, "hnsw": 1024}


class IndexKind(str, Enum):
    FLAT = "flat"
    IVF = "ivf"
    HNSW = "hnsw"

    @classmethod
    def choose(cls, name: str, pairs: int) -> IndexKind:
        """`auto` is flat below 100,000 pairs and ivf from there on.

        Raises `InputError` for an unknown name.
        """
        if name == "auto":
            return cls.FLAT if pairs < EXACT_BELOW else cls.IVF
        try:
            return cls(name)
        except ValueError:
            raise InputError(f"--index takes auto, flat, ivf or hnsw, got {name!r}") from None


@dataclass(frozen=True)
class Nearest:
    """For q queries: (q, k) float32 cosines, descending, and int32 ids; -1 where missing."""

    cosines: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True)
class Tuned:
    """How many lists or candidates a search visits, and the recall measured with that."""

    effort: int
    recall: float


class VectorIndex:
    """An index of one kind that vectors are added to; ids are the caller's."""

    def __init__(self, kind: IndexKind, vectors: Rows, rows: np.ndarray, seed: int) -> None:
        """An empty index for the given (u,) rows; k-means looks at a seeded sample of them."""
        self.kind = kind
        self.lists = _number_of_lists(len(rows)) if kind is IndexKind.IVF else 0
        self._ids = np.empty(len(rows), dtype=np.int32)
        self._filled = 0
        self._index = self._make(vectors, rows, seed)

    def _make(self, vectors: Rows, rows: np.ndarray, seed: int) -> Any:
        faiss = load_faiss()
        dim, metric = vectors.dim, faiss.METRIC_INNER_PRODUCT
        if self.kind is IndexKind.FLAT:
            return faiss.IndexFlatIP(dim)
        half = faiss.ScalarQuantizer.QT_fp16
        if self.kind is IndexKind.HNSW:
            index = faiss.IndexHNSWSQ(dim, half, _GRAPH_DEGREE, metric)
            index.train(vectors.take(rows[:1]))
            return index
        centroids = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFScalarQuantizer(centroids, dim, self.lists, half, metric, False)
        index.referenced_objects = [centroids]
        index.cp.seed, index.cp.niter, index.cp.spherical = seed + 1, _ITERATIONS, True
        index.cp.min_points_per_centroid = 1
        wanted = min(len(rows), _TRAINING_ROWS_PER_LIST * self.lists)
        sample = np.random.default_rng(seed).choice(len(rows), wanted, replace=False)
        index.train(vectors.take(rows[np.sort(sample)]))
        return index

    def __len__(self) -> int:
        return self._filled

    def describe(self, within: Tuned, across: Tuned) -> str:
        """The kind with its settings, for people and for the file's metadata."""
        if self.kind is IndexKind.FLAT:
            return "flat (exact)"
        if self.kind is IndexKind.IVF:
            return f"ivf ({self.lists} lists, {within.effort} and {across.effort} visited)"
        return f"hnsw (degree {_GRAPH_DEGREE}, {within.effort} and {across.effort} candidates)"

    def add(self, vectors: np.ndarray, ids: np.ndarray) -> None:
        """Add (m, d) vectors under (m,) ids."""
        self._ids[self._filled : self._filled + len(ids)] = ids
        self._filled += len(ids)
        self._index.add(vectors)

    def search(self, queries: np.ndarray, k: int, effort: int = 0) -> Nearest:
        """The k nearest of (q, d) queries. `effort` is nprobe or efSearch; flat has none."""
        if self.kind is IndexKind.IVF:
            self._index.nprobe = max(1, min(effort, self.lists))
        elif self.kind is IndexKind.HNSW:
            self._index.hnsw.efSearch = max(effort, k)
        cosines, places = self._index.search(queries, k)
        ids = np.where(places < 0, -1, self._ids[places])
        return Nearest(cosines, ids.astype(np.int32))

    def search_all(
        self, queries: Rows, rows: np.ndarray, k: int, effort: int, tick: Tick = silent
    ) -> Nearest:
        """The k nearest of the given (q,) rows of `queries`."""
        cosines = np.empty((len(rows), k), dtype=np.float32)
        ids = np.empty((len(rows), k), dtype=np.int32)
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            nearest = self.search(queries.take(rows[chunk]), k, effort)
            cosines[chunk], ids[chunk] = nearest.cosines, nearest.ids
            tick(min(start + CHUNK_ROWS, len(rows)))
        return Nearest(cosines, ids)

    def tune(self, queries: np.ndarray, exact: np.ndarray, target: float) -> Tuned:
        """The smallest effort, doubling, whose recall on (q, d) queries reaches `target`.

        `exact` (q, k) are the true cosines. The largest effort is taken where none reaches it.
        """
        if self.kind is IndexKind.FLAT:
            return Tuned(0, 1.0)
        effort = _FIRST_EFFORT[self.kind.value]
        last = min(_LAST_EFFORT[self.kind.value], self.lists or sys.maxsize)
        while True:
            nearest = self.search(queries, exact.shape[1], effort)
            recall = recall_by_value(nearest.cosines, exact)
            if recall >= target or effort >= last:
                return Tuned(effort, recall)
            effort = min(2 * effort, last)


def recall_by_value(cosines: np.ndarray, exact: np.ndarray) -> float:
    """Share of the (q, k) exact neighbours that were found; ties with the k-th count as found."""
    reached = cosines >= exact[:, -1:] - TIE
    return float(reached.sum() / exact.size)


def exact_cosines(vectors: Rows, rows: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """(q, k) cosines of (q, d) queries with their k nearest among the given rows, descending."""
    faiss = load_faiss()
    heap = faiss.ResultHeap(len(queries), k, keep_max=True)
    for start, chunk in _chunks(vectors, rows):
        cosines, ids = faiss.knn(
            queries, chunk, min(k, len(chunk)), metric=faiss.METRIC_INNER_PRODUCT
        )
        heap.add_result(cosines, ids + start)
    heap.finalize()
    return np.asarray(heap.D)


def load_faiss() -> Any:
    """FAISS, imported when it is first needed.

    Where torch or scikit-learn have brought another OpenMP runtime into the process, FAISS
    crashes on macOS as soon as it starts threads; one thread is safe there.
    """
    import faiss

    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)
    return faiss


def _number_of_lists(vectors: int) -> int:
    """A power of two near 4 sqrt(n), but not fewer than 32 vectors to a list."""
    wanted = min(4 * vectors**0.5, vectors / 32)
    return int(2 ** max(0, round(np.log2(max(wanted, 1)))))


def _chunks(vectors: Rows, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    size = 16 * CHUNK_ROWS
    for start in range(0, len(rows), size):
        yield start, vectors.take(rows[start : start + size])
