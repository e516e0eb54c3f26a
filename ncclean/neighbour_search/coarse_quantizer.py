"""The lists of an inverted index: k-means in two levels, and the lists nearest to a vector.

Groups of lists are trained first, then the lists of each group on its own vectors, at a fraction of
what training in one level costs. Lists of one group have consecutive numbers, so what lies near
lies near on the disk as well. A vector is compared with all lists, not only with those of the
groups nearest to it: a caption lies far from all groups of images, and with half of them .95 of
its nearest images are spread over more lists than the comparisons save.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ncclean.neighbour_search.list_scanner import TopK
from ncclean.neighbour_search.matmul import fastest_matmul, load_faiss, to_float32

TRAINING_ROWS_PER_LIST = 64
_ITERATIONS = 10
_ROUTED_VALUES, _ROUTED_ROWS = 1 << 24, 1 << 14  # 64 MB of products, at most


def nlist_for(vectors: int) -> int:
    """Number of inverted lists: a power of two near 2 sqrt(n), at least 32 vectors a list."""
    wanted = min(2 * vectors**0.5, vectors / 32)
    return int(2 ** max(0, round(np.log2(max(wanted, 1)))))


@dataclass(frozen=True)
class CoarseQuantizer:
    """`lists` (L, d) unit vectors, those of a group one after another."""

    lists: np.ndarray

    def __len__(self) -> int:
        return len(self.lists)

    @classmethod
    def train(cls, sample: np.ndarray, lists: int, seed: int) -> CoarseQuantizer:
        """Train at most `lists` centroids by spherical k-means on (m, d) float32 unit vectors."""
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
        return cls(np.concatenate(trained))

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], prefix: str) -> CoarseQuantizer:
        """Load a coarse quantizer from arrays whose names have this prefix."""
        return cls(np.asarray(arrays[prefix + "lists"]))

    def arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """The centroids by name, as a file of arrays keeps them."""
        return {prefix + "lists": self.lists}

    def assign(self, vectors: np.ndarray, probes: int) -> np.ndarray:
        """(m, p) int32 numbers of the lists nearest to (m, d) unit vectors, nearest first.

        p is `probes`, or the number of lists where there are fewer.
        """
        probes = min(probes, len(self))
        assigned = np.empty((len(vectors), probes), np.int32)
        nearest = TopK(self.lists, fastest_matmul(len(vectors) * len(self)))
        rows = min(max(_ROUTED_VALUES // len(self), 1), _ROUTED_ROWS)
        for start in range(0, len(vectors), rows):
            chunk = to_float32(vectors[start : start + rows], "routed in float32")
            assigned[start : start + rows], _ = nearest.search(chunk, probes)
        return assigned


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
