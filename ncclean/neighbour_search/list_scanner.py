"""The few products of queries with members that are needed: those that reach a threshold, or the
largest.

Which may be among them is told by the fastest `Matmul`; those are computed once more, one by one,
so the result is exact in float32, and the same however queries and members were divided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ncclean.neighbour_search.matmul import Float32Matmul, Matmul, inner_products, lengths, longest

# If more of the products may reach their threshold by rounded ones, float32 tells better which do.
_MANY = 1 / 16


@dataclass(frozen=True)
class Hits:
    """(c,) products that reach the threshold of their query: its row, ascending, and the member."""

    rows: np.ndarray
    places: np.ndarray
    cosines: np.ndarray


class ListScanner:
    """Products of (q, d) float32 vectors with the members of one list after the other.

    `take` hands out vectors by row, so they need not be held in float32. Products lie in scratch
    memory: one such object, or one `TopK`, is in use at a time.
    """

    def __init__(self, take: Callable[[np.ndarray], np.ndarray], matmul: Matmul) -> None:
        self._take, self._matmul = take, matmul

    def set_list(self, members: np.ndarray) -> None:
        """Load the (m, d) members of the next inverted list."""
        self._members = members
        self._prepared = self._matmul.prepare("members", members)
        self._longest = longest(members)

    def range_search(
        self, rows: np.ndarray, thresholds: np.ndarray, first: int | None = None
    ) -> Hits:
        """Products of (r,) queries with the list's `first` members that reach (r,) thresholds."""
        count = len(self._members[:first])
        queries = self._take(rows)
        matmul = self._matmul
        places = self._may_reach(matmul, self._prepared, queries, thresholds, count)
        if len(places) > _MANY * len(rows) * count and matmul.error > Float32Matmul.error:
            places = self._may_reach(Float32Matmul(), self._members, queries, thresholds, count)
        row, place = np.divmod(places, count)
        cosines = inner_products(queries, row, self._members, place)
        reached = np.flatnonzero(cosines >= thresholds[row])
        return Hits(row[reached], place[reached], cosines[reached])

    def _may_reach(
        self, matmul: Matmul, members: Any, queries: np.ndarray, thresholds: np.ndarray, count: int
    ) -> np.ndarray:
        """Find the products with the first members that may reach the thresholds."""
        products = matmul.multiply(matmul.prepare("queries", queries), members, len(queries), count)
        return products.range_search(thresholds - matmul.error * self._longest * lengths(queries))


class TopK:
    """The largest products of queries with (m, d) members.

    Members are compared less their mean: the order is the same, the products are smaller and so is
    what rounding changes, and the largest are above zero.
    """

    def __init__(self, members: np.ndarray, matmul: Matmul) -> None:
        self._members, self._matmul = members, matmul
        centred = members - members.mean(axis=0)
        self._prepared = matmul.prepare("members", centred)
        # The products that decide in the end are those with the members themselves.
        self._error = 2 * (matmul.error * longest(centred) + Float32Matmul.error * longest(members))

    def search(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` list members of the largest inner product with each query, descending."""
        prepared = self._matmul.prepare("queries", queries)
        multiplied = self._matmul.multiply(
            prepared, self._prepared, len(queries), len(self._members)
        )
        # So many products reach the threshold, so none far below is among the largest.
        thresholds = multiplied.thresholds(count) - self._error * lengths(queries)
        row, place = np.divmod(multiplied.range_search(thresholds), len(self._members))
        return ordered(row, place, inner_products(queries, row, self._members, place), count)


def ordered(
    row: np.ndarray, place: np.ndarray, values: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """(m, count) places and values of the largest of each row's values, descending.

    Rows ascend, and places within them. Of equal values the first come first.
    """
    counts = np.bincount(row)
    rank = places_within(counts)
    places = np.zeros((len(counts), int(counts.max(initial=count))), np.int64)
    candidates = np.full(places.shape, -np.inf, values.dtype)
    places[row, rank], candidates[row, rank] = place, values
    order = np.argsort(-candidates, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(places, order, axis=1), np.take_along_axis(candidates, order, axis=1)


def places_within(counts: np.ndarray) -> np.ndarray:
    """(c,) position of each value among those of its row, from 0."""
    places: np.ndarray = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return places
