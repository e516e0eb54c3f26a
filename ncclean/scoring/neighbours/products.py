"""Products of queries with the members of lists that reach a floor, on a GPU where there is one.

Few products reach their floor. A GPU takes all in bfloat16, and those that may reach it are taken
once more in float32 here. What rounding can change is bounded, so the result is that of float32
alone. On processors with matrix tiles (AMX) the same way was slower than float32 on lists of a
hundred members, so they do not take it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ncclean.scoring.neighbours.centroids import load_faiss

if TYPE_CHECKING:
    import torch

# A product of two vectors of which each element was rounded to bfloat16 is off by less than this
# share of the product of their lengths, by Cauchy-Schwarz; a little is for sums in float32.
_ERROR = 2 * 2.0**-8 + 2.0**-16 + 2.0**-14
# Sizes are filled up to multiples of these: devices choose or compile other instructions for each.
_ROW_MULTIPLE, _MEMBER_MULTIPLE = 256, 64
# Of a list's products; if more may reach their floor, to take all in float32 is faster.
_MOST_TAKEN_AGAIN = 1 / 16


@dataclass(frozen=True)
class Reached:
    """(c,) products that reach the floor of their query, by query: its row, the member's place."""

    rows: np.ndarray
    places: np.ndarray
    cosines: np.ndarray


class Products:
    """Products of (q, d) float32 vectors, in memory that is used again.

    To have the system give fresh memory for each list takes longer than to fill it.
    """

    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors = vectors
        self._chosen = np.empty((0, vectors.shape[1]), vectors.dtype)
        self._products = np.empty(0, vectors.dtype)

    def reaching(self, rows: np.ndarray, members: np.ndarray, floors: np.ndarray) -> Reached:
        """Those of the (r,) chosen rows with (m, d) members that reach the (r,) floors."""
        size = len(rows) * len(members)
        if len(self._products) < size:
            self._products = np.empty(size, self._vectors.dtype)
        if len(self._chosen) < len(rows):
            self._chosen = np.empty((len(rows), self._vectors.shape[1]), self._vectors.dtype)
        chosen = self._chosen[: len(rows)]
        np.take(self._vectors, rows, axis=0, out=chosen, mode="clip")  # `raise` would copy `out`
        products = self._products[:size].reshape(len(rows), len(members))
        np.matmul(chosen, members.T, out=products)
        cells = np.flatnonzero(products >= floors[:, None])
        return Reached(*np.divmod(cells, len(members)), products.ravel()[cells])


class CoarseProducts(Products):
    """The same by way of bfloat16 products on a device of torch."""

    def __init__(self, vectors: np.ndarray, device: str) -> None:
        super().__init__(vectors)
        self._device = device
        self._coarse = self._rounded(vectors)
        self._lengths = np.linalg.norm(vectors, axis=1)
        self._buffers = [self._coarse.new_zeros(0) for _ in range(3)]

    def reaching(self, rows: np.ndarray, members: np.ndarray, floors: np.ndarray) -> Reached:
        import torch

        longest = np.einsum("md,md->m", members, members).max(initial=0) ** 0.5
        # Rounding keeps the order: a product that reaches it does so when both are rounded.
        least = self._rounded(floors - _ERROR * longest * self._lengths[rows])
        chosen, listed, products = self._room(len(rows), len(members))
        of_rows = torch.from_numpy(rows).to(self._device)
        torch.index_select(self._coarse, 0, of_rows, out=chosen[: len(rows)])
        listed[: len(members)].copy_(torch.from_numpy(members))
        torch.mm(chosen, listed.T, out=products)
        product_bits = _bits(products)[: len(rows), : len(members)]
        bounds = _bits(least)[:, None]
        if (bounds < 0).any():
            product_bits, bounds = _ordered(product_bits), _ordered(bounds)
        may_reach = product_bits >= bounds
        places = np.flatnonzero(may_reach)
        if len(places) > _MOST_TAKEN_AGAIN * may_reach.size:
            return super().reaching(rows, members, floors)
        row, place = np.divmod(places, len(members))
        cosines = self._exact(rows[row], members, place)
        reached = cosines >= floors[row]
        return Reached(row[reached], place[reached], cosines[reached])

    def _room(self, rows: int, members: int) -> Iterator[torch.Tensor]:
        """Chosen rows, members and their products, filled up, in memory that is used again."""
        rows += -rows % _ROW_MULTIPLE
        members += -members % _MEMBER_MULTIPLE
        dim = self._vectors.shape[1]
        for number, (height, width) in enumerate(((rows, dim), (members, dim), (rows, members))):
            if len(self._buffers[number]) < height * width:
                self._buffers[number] = self._coarse.new_zeros(height * width)
            yield self._buffers[number][: height * width].view(height, width)

    def _rounded(self, values: np.ndarray) -> torch.Tensor:
        import torch

        return torch.from_numpy(values).to(self._device, torch.bfloat16)

    def _exact(self, rows: np.ndarray, members: np.ndarray, places: np.ndarray) -> np.ndarray:
        """(c,) float32 products of rows with members."""
        faiss = load_faiss()
        rows, places = rows.astype(np.int64), places.astype(np.int64)
        products = np.empty(len(rows), np.float32)
        queries, members = np.ascontiguousarray(self._vectors), np.ascontiguousarray(members)
        arrays = (queries, rows, members, places, products)
        faiss.pairwise_indexed_inner_product(
            members.shape[1], len(rows), *map(faiss.swig_ptr, arrays)
        )
        return products


def _bits(values: torch.Tensor) -> np.ndarray:
    """Numbers of bfloat16 as integers: NumPy compares them many times as fast as torch.

    Without negative ones they are in the order of the numbers.
    """
    import torch

    bits: np.ndarray = values.view(torch.int16).cpu().numpy()
    return bits


def _ordered(bits: np.ndarray) -> np.ndarray:
    """The bits of numbers as integers in their order; -0 comes before 0."""
    ordered: np.ndarray = bits ^ ((bits >> 15) & 0x7FFF)
    return ordered


def products_of(vectors: np.ndarray) -> Products:
    """Products of (q, d) float32 vectors, on a GPU where there is one."""
    return CoarseProducts(vectors, "cuda") if _has_gpu() else Products(vectors)


@functools.cache
def _has_gpu() -> bool:
    """Whether torch has a GPU; it takes seconds to import, so not without any sign of one."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return False
    import torch

    if not torch.cuda.is_available():
        return False
    # Partial sums stay in float32, as the bound on the error has it.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return True
