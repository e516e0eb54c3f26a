"""Products of queries with the members of lists that reach a floor: few of all.

Where that is faster they are taken in bfloat16 first, on a GPU or in matrix tiles (`rounding`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ncclean.scoring.neighbours.memory import kept
from ncclean.scoring.neighbours.rounding import (
    ERROR,
    RoundedProducts,
    bits_of,
    device_for,
    lengths,
    longest,
    reached,
    single_products,
)

# Of a list's products; if more may reach their floor, to take all in float32 is faster.
_MOST_TAKEN_AGAIN = 1 / 16


@dataclass(frozen=True)
class Reached:
    """(c,) products that reach the floor of their query, by query: its row, the member's place."""

    rows: np.ndarray
    places: np.ndarray
    cosines: np.ndarray


class Products:
    """Products of (q, d) float32 vectors with the members of one list after the other."""

    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors = vectors

    def begin(self, members: np.ndarray) -> None:
        """Take the (m, d) members of the next list."""
        self._members = members

    def reaching(self, rows: np.ndarray, floors: np.ndarray, first: int | None = None) -> Reached:
        """Those of the (r,) chosen rows with the `first` members that reach the (r,) floors."""
        members = self._members[:first]
        chosen = kept("chosen rows", (len(rows), members.shape[1]), np.float32)
        np.take(self._vectors, rows, axis=0, out=chosen, mode="clip")  # `raise` would copy `out`
        products = kept("cosines", (len(rows), len(members)), np.float32)
        np.matmul(chosen, members.T, out=products)
        cells = np.flatnonzero(products >= floors[:, None])
        return Reached(*np.divmod(cells, len(members)), products.ravel()[cells])


class CoarseProducts(Products):
    """The same by way of bfloat16 products on a device of torch."""

    def __init__(self, vectors: np.ndarray, device: str) -> None:
        super().__init__(vectors)
        self._coarse = RoundedProducts(device)
        self._rounded = self._coarse.rounded("queries", vectors)
        self._lengths = lengths(vectors)

    def begin(self, members: np.ndarray) -> None:
        super().begin(members)
        self._rounded_members = self._coarse.rounded("members", members)
        self._error = ERROR * longest(members) * self._lengths

    def reaching(self, rows: np.ndarray, floors: np.ndarray, first: int | None = None) -> Reached:
        count = len(self._members[:first])
        chosen = self._coarse.chosen(self._rounded, rows)
        products = self._coarse.bits(chosen, self._rounded_members, count)[: len(rows)]
        # Rounding keeps the order: a product that reaches it does so when both are rounded.
        least = bits_of(floors - self._error[rows])
        may_reach = reached(products, least)
        cells = np.flatnonzero(may_reach)
        if len(cells) > _MOST_TAKEN_AGAIN * may_reach.size:
            return super().reaching(rows, floors, first)
        row, place = np.divmod(cells, count)
        cosines = single_products(self._vectors, rows[row], self._members, place)
        does_reach = np.flatnonzero(cosines >= floors[row])
        return Reached(row[does_reach], place[does_reach], cosines[does_reach])


def products_of(vectors: np.ndarray, count: float) -> Products:
    """Products of (q, d) float32 vectors, so many in all, the way that is fastest here."""
    device = device_for(count)
    return Products(vectors) if device is None else CoarseProducts(vectors, device)
