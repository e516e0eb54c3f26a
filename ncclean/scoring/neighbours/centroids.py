"""The lists of an inverted index: k-means in two levels, and the lists nearest to a vector.

Groups of lists are trained first, then the lists of each group on its own vectors, at a fraction of
what training in one level costs. Lists of one group have consecutive numbers, so what lies near
lies near on the disk as well. A vector is compared with all lists, not only with those of the
groups nearest to it: a caption lies far from all groups of images, and with half of them .95 of
its nearest images are spread over more lists than the comparisons save.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ncclean.scoring.neighbours.memory import kept
from ncclean.scoring.neighbours.rounding import (
    ERROR,
    ROUNDING,
    RoundedProducts,
    as_floats,
    bits_of,
    device_for,
    lengths,
    longest,
    reached,
    single_products,
)

TRAINING_ROWS_PER_LIST = 64
_ITERATIONS = 10
_ROUTED_VALUES = 1 << 24  # 64 MB of products
_SLABS = 16  # of wide rows, of which only the largest values are partitioned


def number_of_lists(vectors: int) -> int:
    """A power of two near 2 sqrt(n), but not fewer than 32 vectors to a list."""
    wanted = min(2 * vectors**0.5, vectors / 32)
    return int(2 ** max(0, round(np.log2(max(wanted, 1)))))


@dataclass(frozen=True)
class Centroids:
    """`lists` (L, d) unit vectors, those of a group one after another."""

    lists: np.ndarray

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
        return cls(np.concatenate(trained))

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], prefix: str) -> Centroids:
        """Those that `arrays` holds under a name of this prefix."""
        return cls(np.asarray(arrays[prefix + "lists"]))

    def arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """The array by its name, for a file."""
        return {prefix + "lists": self.lists}

    def route(self, vectors: np.ndarray, probes: int) -> np.ndarray:
        """(m, p) int32 numbers of the lists nearest to (m, d) unit vectors, nearest first.

        p is `probes`, or the number of lists where there are fewer.
        """
        probes = min(probes, len(self))
        routed = np.empty((len(vectors), probes), np.int32)
        device = device_for(len(vectors) * len(self))
        is_rounded = device is not None and len(self) >= 2 * _SLABS * probes
        find = _CoarseLists(self.lists, device).nearest if is_rounded else self._nearest
        rows = max(_ROUTED_VALUES // len(self), 1)
        for start in range(0, len(vectors), rows):
            chunk = vectors[start : start + rows].astype(np.float32, copy=False)
            routed[start : start + rows] = find(chunk, probes)
        return routed

    def _nearest(self, vectors: np.ndarray, probes: int) -> np.ndarray:
        cosines = kept("cosines", (len(vectors), len(self)), np.float32)
        return largest(np.matmul(vectors, self.lists.T, out=cosines), probes)


class _CoarseLists:
    """The lists of the largest cosines, by way of bfloat16 products on a device of torch.

    Lists are compared less their mean: the order is the same, the products are smaller and so is
    what rounding changes, and the largest are above zero.
    """

    def __init__(self, lists: np.ndarray, device: str) -> None:
        self._lists, self._coarse = lists, RoundedProducts(device)
        centred = lists - lists.mean(axis=0)
        self._longest = longest(centred)
        self._centred = self._coarse.rounded("members", centred)

    def nearest(self, vectors: np.ndarray, probes: int) -> np.ndarray:
        """(m, probes) places of the lists nearest to (m, d) vectors, nearest first."""
        rounded = self._coarse.rounded("queries", vectors)
        bits = self._coarse.bits(rounded, self._centred, len(self._lists))[: len(vectors)]
        # So many products reach the floor, so none far below is among the largest in float32.
        of_bits = _floors(bits.view(np.int16), probes)  # in the order of the numbers above zero
        floors = np.where(of_bits < 0, -np.inf, as_floats(of_bits.view(np.uint16)))
        error = 2 * ERROR * self._longest * lengths(vectors)
        least = floors - ROUNDING * np.abs(floors) - error
        places = np.flatnonzero(reached(bits, bits_of(least.astype(np.float32))))
        row, place = np.divmod(places, len(self._lists))
        return _ordered(row, place, single_products(vectors, row, self._lists, place), probes)


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
    may_be = values >= _floors(values, count)[:, None]
    row, place = np.divmod(np.flatnonzero(may_be), values.shape[1])
    return _ordered(row, place, values[row, place], count)


def _ordered(row: np.ndarray, place: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """(m, count) places of the largest of (c,) values of each row; rows ascend, so do places."""
    counts = np.bincount(row)
    rank = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.zeros((len(counts), int(counts.max(initial=count))), np.int64)
    candidates = np.full(places.shape, -np.inf, values.dtype)
    places[row, rank], candidates[row, rank] = place, values
    order = np.argsort(-candidates, axis=1, kind="stable")[:, :count]
    ordered: np.ndarray = np.take_along_axis(places, order, axis=1)
    return ordered


def _floors(values: np.ndarray, count: int) -> np.ndarray:
    """(m,) values that at least `count` of each row reach, and not many more.

    Of wide rows, the largest values of sets of `_SLABS` are partitioned, not all values: as many
    sets as there are largest ones reach the floor.
    """
    sets = values.shape[1] // _SLABS
    if sets >= 2 * count:
        values = values[:, : sets * _SLABS].reshape(len(values), _SLABS, sets).max(axis=1)
    place = values.shape[1] - count
    floors: np.ndarray = np.partition(values, place, axis=1)[:, place]
    return floors
