"""Products of vectors rounded to bfloat16, and what rounding can change of them.

GPUs and processors with matrix tiles (AMX) take them many times as fast as those of float32. A
search needs few of all products: those that may be among them by the rounded ones are taken once
more in float32, so its result is that of float32 alone.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ncclean.scoring.neighbours.memory import kept

if TYPE_CHECKING:
    import torch

# A product of two vectors of which each element was rounded to bfloat16 is off by less than this
# share of the product of their lengths, by Cauchy-Schwarz; a little is for sums in float32.
ERROR = 2 * 2.0**-8 + 2.0**-16 + 2.0**-14
# By what share rounding a product itself may have changed it.
ROUNDING = 2.0**-8
# Sizes are filled up to multiples of these: devices choose or compile other instructions for each.
_ROW_MULTIPLE, _MEMBER_MULTIPLE = 256, 64
# Products that importing torch is worth, for a second or two: as many take as long in float32.
_WORTH_TORCH, _WORTH_ROUNDING = 3e8, 1e6


def device_for(products: float) -> str | None:
    """Where so many products are best taken rounded; None where float32 is faster."""
    if _has_gpu():
        return "cuda"
    is_worth = products >= (_WORTH_ROUNDING if "torch" in sys.modules else _WORTH_TORCH)
    return "cpu" if is_worth and _has_tiles() else None


class RoundedProducts:
    """Products of (r, d) queries with (m, d) members, both rounded, on a device of torch."""

    def __init__(self, device: str) -> None:
        self._device = device

    def rounded(self, name: str, values: np.ndarray) -> torch.Tensor:
        """(r, d) float32 or float16 values, in memory kept under the name and filled up."""
        import torch

        room = self._room(name, _filled(len(values), _MEMBER_MULTIPLE), values.shape[1])
        room[: len(values)].copy_(torch.from_numpy(values))
        return room

    def chosen(self, values: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        """(r,) rows of rounded values, filled up."""
        import torch

        room = self._room("chosen", _filled(len(rows), _ROW_MULTIPLE), values.shape[1])
        places = torch.from_numpy(rows).to(self._device)
        torch.index_select(values, 0, places, out=room[: len(rows)])
        return room

    def bits(self, queries: torch.Tensor, members: torch.Tensor, count: int) -> np.ndarray:
        """(r, count) products of queries with the first members, rounded too, as uint16.

        NumPy compares integers many times as fast as torch. To be overwritten.
        """
        import torch

        members = members[: _filled(count, _MEMBER_MULTIPLE)]
        products = self._room("products", len(queries), len(members))
        torch.mm(queries, members.T, out=products)
        bits: np.ndarray = products.view(torch.int16).cpu().numpy().view(np.uint16)[:, :count]
        return bits

    def _room(self, name: str, *shape: int) -> torch.Tensor:
        import torch

        if self._device == "cpu":
            return torch.from_numpy(kept(name, shape, np.int16)).view(torch.bfloat16)
        return torch.empty(shape, dtype=torch.bfloat16, device=self._device)


def _filled(count: int, multiple: int) -> int:
    return count + -count % multiple


def bits_of(values: np.ndarray) -> np.ndarray:
    """(r,) float32 values rounded to bfloat16, as uint16."""
    import torch

    rounded = torch.from_numpy(values).to(torch.bfloat16)
    bits: np.ndarray = rounded.view(torch.int16).numpy().view(np.uint16)
    return bits


def as_floats(bits: np.ndarray) -> np.ndarray:
    """(r,) numbers of bfloat16, as uint16, in float32."""
    floats: np.ndarray = (bits.astype(np.uint32) << 16).view(np.float32)
    return floats


def reached(bits: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """(r, m) bool: which numbers of bfloat16 reach the floor of their row; overwrites `bits`.

    As integers, positive numbers come in their order, then negative ones from zero on downwards.
    So those that reach a floor lie in one range, and a subtraction tells whether one does.
    """
    is_low = (floors >= 0x8000) | (floors == 0)
    first = np.where(is_low, 0, floors).astype(np.uint16)
    span = np.where(is_low, floors | 0x8000, 0x7FFF - first).astype(np.uint16)
    np.subtract(bits, first[:, None], out=bits)
    within: np.ndarray = bits <= span[:, None]
    return within


def longest(vectors: np.ndarray) -> float:
    """The length of the longest of (m, d) vectors, 0 if there is none."""
    return float(lengths(vectors).max(initial=0))


def lengths(vectors: np.ndarray) -> np.ndarray:
    """(m,) lengths; `norm` of NumPy would hold all squares."""
    of_each: np.ndarray = np.sqrt(np.einsum("md,md->m", vectors, vectors))
    return of_each


def single_products(
    queries: np.ndarray, rows: np.ndarray, members: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """(c,) products in float32 of rows of queries with members at places."""
    from ncclean.scoring.neighbours.centroids import load_faiss

    faiss = load_faiss()
    rows, places = rows.astype(np.int64), places.astype(np.int64)
    products = np.empty(len(rows), np.float32)
    queries, members = np.ascontiguousarray(queries), np.ascontiguousarray(members)
    arrays = (queries, rows, members, places, products)
    faiss.pairwise_indexed_inner_product(members.shape[1], len(rows), *map(faiss.swig_ptr, arrays))
    return products


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


@functools.cache
def _has_tiles() -> bool:
    import torch

    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())
