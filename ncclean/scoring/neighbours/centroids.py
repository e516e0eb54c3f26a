"""The lists of an inverted index: k-means in two levels, and the lists nearest to a vector.

Groups of lists are trained first, then the lists of each group on its own vectors; a vector is
compared with the groups, and with the lists of its own and those next to it. Training and routing
cost a fraction of what one level costs, which at ten million vectors is more than the search.
Lists of one group have consecutive numbers, so what lies near lies near on the disk as well.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

TRAINING_ROWS_PER_LIST = 64
_ITERATIONS = 10
# Groups whose lists a vector is compared with. The same for every number of probes, so that the
# nearest list is the same one, too.
_GROUPS_VISITED = 16
_ROUTED_ROWS = 1 << 15


def number_of_lists(vectors: int) -> int:
    """A power of two near 4 sqrt(n), but not fewer than 32 vectors to a list."""
    wanted = min(4 * vectors**0.5, vectors / 32)
    return int(2 ** max(0, round(np.log2(max(wanted, 1)))))


@dataclass(frozen=True)
class Centroids:
    """`lists` (L, d) unit vectors, those of group g from `starts[g]` on; `groups` (G, d) likewise.

    `starts` is (G + 1,).
    """

    groups: np.ndarray
    lists: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.lists)

    @classmethod
    def train(cls, sample: np.ndarray, lists: int, seed: int) -> Centroids:
        """At most `lists` lists by spherical k-means on (m, d) float32 unit vectors."""
        lists = min(lists, len(sample))
        groups = _kmeans(sample, max(1, round(lists**0.5)), seed)
        of_group = (sample @ groups.T).argmax(axis=1)
        sizes = np.bincount(of_group, minlength=len(groups))
        shares = np.cumsum(sizes) * lists / len(sample)
        wanted = np.diff(np.round(shares).astype(np.int64), prepend=0)
        trained = [
            _kmeans(sample[of_group == number], int(min(max(want, 1), size)), seed)
            for number, (want, size) in enumerate(zip(wanted, sizes, strict=True))
            if size
        ]
        starts = np.cumsum([0, *map(len, trained)])
        return cls(groups[sizes > 0], np.concatenate(trained), starts)

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], prefix: str) -> Centroids:
        """Those that `arrays` holds under names of this prefix."""
        return cls(*(np.asarray(arrays[prefix + name]) for name in ("groups", "lists", "starts")))

    def arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays by name, for a file."""
        return {prefix + name: array for name, array in asdict(self).items()}

    def route(self, vectors: np.ndarray, probes: int) -> np.ndarray:
        """(m, p) int32 numbers of the lists nearest to (m, d) unit vectors, nearest first.

        They are sought among the lists of the vector's group and of those next to it. p is
        `probes`, or less where there are fewer lists in some groups and those next to them.
        """
        routed = np.empty((len(vectors), min(probes, self._reachable)), np.int32)
        for start in range(0, len(vectors), _ROUTED_ROWS):
            rows = slice(start, start + _ROUTED_ROWS)
            self._route(vectors[rows].astype(np.float32, copy=False), routed[rows])
        return routed

    @cached_property
    def _next_to(self) -> list[np.ndarray]:
        """Numbers of the lists that vectors of each group are compared with."""
        visited = min(_GROUPS_VISITED, len(self.groups))
        near = largest(self.groups @ self.groups.T, visited)
        ranges = [np.arange(*self.starts[group : group + 2]) for group in range(len(self.groups))]
        return [np.concatenate([ranges[one] for one in np.sort(several)]) for several in near]

    @cached_property
    def _reachable(self) -> int:
        return min(map(len, self._next_to))

    def _route(self, vectors: np.ndarray, routed: np.ndarray) -> None:
        groups = (vectors @ self.groups.T).argmax(axis=1)
        order = np.argsort(groups, kind="stable")
        ends = np.cumsum(np.bincount(groups, minlength=len(self.groups)))
        for lists, rows in zip(self._next_to, np.split(order, ends[:-1]), strict=True):
            if len(rows):
                cosines = vectors[rows] @ self.lists[lists].T
                routed[rows] = lists[largest(cosines, routed.shape[1])]


def load_faiss() -> Any:
    """FAISS, imported when it is first needed.

    Where torch or scikit-learn have brought another OpenMP runtime into the process, FAISS
    crashes on macOS as soon as it starts threads; one thread is safe there.
    """
    import faiss

    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)
    return faiss


def _kmeans(sample: np.ndarray, count: int, seed: int) -> np.ndarray:
    if count == 1:
        mean = sample.mean(axis=0, keepdims=True)
        unit: np.ndarray = mean / max(float(np.linalg.norm(mean)), np.finfo(np.float32).tiny)
        return unit
    kmeans = load_faiss().Kmeans(
        sample.shape[1], count, niter=_ITERATIONS, spherical=True, seed=seed + 1,
        min_points_per_centroid=1, max_points_per_centroid=1 << 20,
    )  # fmt: skip
    kmeans.train(sample)
    return np.asarray(kmeans.centroids).reshape(count, -1).copy()


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """(m, count) places of the largest of (m, w) values, descending; of equal ones, the first."""
    if count == 1:
        first: np.ndarray = values.argmax(axis=1)[:, None]
        return first
    width = values.shape[1]
    if count < width:
        # A partition of values is many times as fast as one of places.
        floors = np.partition(values, width - count, axis=1)[:, width - count]
        reached = values >= floors[:, None]
        for row in np.flatnonzero(np.count_nonzero(reached, axis=1) > count):  # ties
            surplus = np.count_nonzero(reached[row]) - count
            reached[row, np.flatnonzero(values[row] == floors[row])[-surplus:]] = False
        places = np.flatnonzero(reached).reshape(len(values), count) % width
    else:
        places = np.broadcast_to(np.arange(width), values.shape)
    found = np.take_along_axis(values, places, axis=1)
    ordered: np.ndarray = np.take_along_axis(
        places, np.argsort(-found, axis=1, kind="stable"), axis=1
    )
    return ordered
