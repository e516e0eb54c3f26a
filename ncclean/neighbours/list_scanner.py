"""The few products of queries with members that are needed: those that reach a floor, the largest.

Which may be among them is told by the fastest `Arithmetic`; those are taken once more, one by one,
so the result is exact in float32, and the same however queries and members were divided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ncclean.neighbours.matmul import (
    Arithmetic,
    Float32,
    lengths,
    longest,
    single_products,
)

# If more of the products may reach their floor by rounded ones, float32 tells better which do.
_MANY = 1 / 16


@dataclass(frozen=True)
class Reached:
    """(c,) products that reach the floor of their query, by query: its row, the member's place."""

    rows: np.ndarray
    places: np.ndarray
    cosines: np.ndarray


class Products:
    """Products of (q, d) float32 vectors with the members of one list after the other.

    `take` hands out vectors by row, so they need not be held in float32. Products are held in kept
    memory: one such object, or one `Largest`, is in use at a time.
    """

    def __init__(self, take: Callable[[np.ndarray], np.ndarray], arithmetic: Arithmetic) -> None:
        self._take, self._arithmetic = take, arithmetic

    def begin(self, members: np.ndarray) -> None:
        """Take the (m, d) members of the next list."""
        self._members = members
        self._held = self._arithmetic.hold("members", members)
        self._longest = longest(members)

    def reaching(self, rows: np.ndarray, floors: np.ndarray, first: int | None = None) -> Reached:
        """Those of the (r,) chosen rows with the `first` members that reach the (r,) floors."""
        count = len(self._members[:first])
        queries = self._take(rows)
        way = self._arithmetic
        places = self._may_reach(way, self._held, queries, floors, count)
        if len(places) > _MANY * len(rows) * count and way.error > Float32.error:
            places = self._may_reach(Float32(), self._members, queries, floors, count)
        row, place = np.divmod(places, count)
        cosines = single_products(queries, row, self._members, place)
        reached = np.flatnonzero(cosines >= floors[row])
        return Reached(row[reached], place[reached], cosines[reached])

    def _may_reach(
        self, way: Arithmetic, members: Any, queries: np.ndarray, floors: np.ndarray, count: int
    ) -> np.ndarray:
        """Of products with the first of the members held, those that may reach the floors."""
        products = way.multiply(way.hold("queries", queries), members, len(queries), count)
        return products.reaching(floors - way.error * self._longest * lengths(queries))


class Largest:
    """The largest products of queries with (m, d) members.

    Members are compared less their mean: the order is the same, the products are smaller and so is
    what rounding changes, and the largest are above zero.
    """

    def __init__(self, members: np.ndarray, arithmetic: Arithmetic) -> None:
        self._members, self._arithmetic = members, arithmetic
        centred = members - members.mean(axis=0)
        self._held = arithmetic.hold("members", centred)
        # The products that decide in the end are those with the members themselves.
        self._error = 2 * (arithmetic.error * longest(centred) + Float32.error * longest(members))

    def of(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(q, count) places of the largest of each query, descending, and the products."""
        held = self._arithmetic.hold("queries", queries)
        multiplied = self._arithmetic.multiply(held, self._held, len(queries), len(self._members))
        # So many products reach the floor, so none far below is among the largest.
        floors = multiplied.floors(count) - self._error * lengths(queries)
        row, place = np.divmod(multiplied.reaching(floors), len(self._members))
        return ordered(row, place, single_products(queries, row, self._members, place), count)


def ordered(
    row: np.ndarray, place: np.ndarray, values: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """(m, count) places and values of the largest of (c,) values of each row, descending.

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
    """(c,) place of each value among those of its row, from 0; rows have so many values each."""
    places: np.ndarray = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return places
