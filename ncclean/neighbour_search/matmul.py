"""Products of many vectors in float32 or, rounded, in bfloat16, to tell which few are needed.

GPUs and processors with matrix tiles (AMX) multiply in bfloat16 many times as fast. What either way
may be off is bounded, and the products that may be needed are taken one by one in the end: so a
result depends neither on the way nor on which vectors were multiplied together.
"""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclean.neighbour_search.scratch_arrays import scratch

if TYPE_CHECKING:
    import torch

# Sizes are filled up to multiples: devices choose or compile other instructions for each.
_MULTIPLE = 64
# So many products are worth the second or two of importing torch, since a process has many tasks;
# where it has been imported, so many are faster rounded.
_WORTH_TORCH, _WORTH_ROUNDING = 1e8, 1e5
_SLABS = 16  # of wide rows, of which only the largest values are partitioned


@dataclass(frozen=True)
class ProductMatrix:
    """(r, m) products of queries with members."""

    values: np.ndarray

    def range_search(self, thresholds: np.ndarray) -> np.ndarray:
        """(c,) flat indices of the products that reach their row's threshold. Call it once."""
        return np.flatnonzero(self.values >= thresholds[:, None])

    def thresholds(self, count: int) -> np.ndarray:
        """(r,) values that the `count` largest products of each row reach, and few others."""
        return thresholds_of(self.values, count)


class Matmul(ABC):
    """A way to multiply. `error` times the lengths of two vectors bounds what it may be off."""

    error: float

    @abstractmethod
    def prepare(self, name: str, vectors: np.ndarray) -> Any:
        """Convert (m, d) float32 vectors to the form that is multiplied, in a named buffer."""

    @abstractmethod
    def multiply(self, queries: Any, members: Any, rows: int, count: int) -> ProductMatrix:
        """Inner products of the first `rows` queries with the first `count` members."""


class Float32Matmul(Matmul):
    """Matrix products of NumPy."""

    # Sums of 512 products are off by at most half of it, those of more by less than it in all
    # likelihood: errors would have to add up.
    error = 2.0**-14

    def prepare(self, name: str, vectors: np.ndarray) -> np.ndarray:
        return vectors

    def multiply(
        self, queries: np.ndarray, members: np.ndarray, rows: int, count: int
    ) -> ProductMatrix:
        products = scratch("products", (rows, count), np.float32)
        np.matmul(queries[:rows], members[:count].T, out=products)
        return ProductMatrix(products)


class Bfloat16Matmul(Matmul):
    """Matrix products of torch on a device."""

    # Each element is off by at most this share, so the product by twice that, by Cauchy-Schwarz; a
    # little is for sums in float32.
    error = 2 * 2.0**-8 + 2.0**-16 + Float32Matmul.error

    def __init__(self, device: str) -> None:
        self._device = device

    def prepare(self, name: str, vectors: np.ndarray) -> torch.Tensor:
        import torch

        prepared = self._room(name, _filled(len(vectors)), vectors.shape[1])
        # torch warns of arrays that cannot be written to, such as mapped files.
        vectors = vectors if vectors.flags.writeable else vectors.copy()
        prepared[: len(vectors)].copy_(torch.from_numpy(vectors))
        return prepared

    def multiply(
        self, queries: torch.Tensor, members: torch.Tensor, rows: int, count: int
    ) -> ProductMatrix:
        import torch

        members = members[: _filled(count)]
        products = self._room("products", len(queries), len(members))
        torch.mm(queries, members.T, out=products)
        # NumPy compares integers many times as fast as torch does.
        bits = products.view(torch.int16).cpu().numpy().view(np.uint16)
        return RoundedProducts(bits[:rows, :count])

    def _room(self, name: str, *shape: int) -> torch.Tensor:
        import torch

        if self._device == "cpu":
            return torch.from_numpy(scratch(name, shape, np.int16)).view(torch.bfloat16)
        return torch.empty(shape, dtype=torch.bfloat16, device=self._device)


@dataclass(frozen=True)
class RoundedProducts(ProductMatrix):
    """Products rounded to bfloat16, as uint16: positive ones in their order, then negative ones
    from zero on downwards.
    """

    def range_search(self, thresholds: np.ndarray) -> np.ndarray:
        # Rounding keeps the order: what reaches a threshold does so when both are rounded.
        rounded = _rounded(thresholds)
        is_low = (rounded >= 0x8000) | (rounded == 0)
        if not is_low.any():
            return np.flatnonzero(self.values.view(np.int16) >= rounded.view(np.int16)[:, None])
        # What reaches a threshold lies in one range of integers; a subtraction tells what does.
        first = np.where(is_low, 0, rounded).astype(np.uint16)
        span = np.where(is_low, rounded | 0x8000, 0x7FFF - first).astype(np.uint16)
        np.subtract(self.values, first[:, None], out=self.values)
        return np.flatnonzero(self.values <= span[:, None])

    def thresholds(self, count: int) -> np.ndarray:
        bits = thresholds_of(self.values.view(np.int16), count)  # in the order of those above zero
        values = (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        thresholds: np.ndarray = np.where(bits < 0, -np.inf, values * np.float32(1 - 2.0**-8))
        return thresholds


def fastest_matmul(products: float) -> Matmul:
    """Time the ways to multiply on this machine, and return the fastest."""
    if _has_gpu():
        return Bfloat16Matmul("cuda")
    is_worth = products >= (_WORTH_ROUNDING if "torch" in sys.modules else _WORTH_TORCH)
    return Bfloat16Matmul("cpu") if is_worth and _has_tiles() else Float32Matmul()


def inner_products(
    queries: np.ndarray, rows: np.ndarray, members: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """(c,) float32 inner products of chosen queries with chosen members."""
    faiss = load_faiss()
    rows, places = (one.astype(np.int64, copy=False) for one in (rows, places))
    products = np.empty(len(rows), np.float32)
    queries, members = np.ascontiguousarray(queries), np.ascontiguousarray(members)
    arrays = (queries, rows, members, places, products)
    faiss.pairwise_indexed_inner_product(members.shape[1], len(rows), *map(faiss.swig_ptr, arrays))
    return products


def lengths(vectors: np.ndarray) -> np.ndarray:
    """(m,) lengths of (m, d) vectors, without the copy that NumPy's `norm` makes."""
    of_each: np.ndarray = np.sqrt(np.einsum("md,md->m", vectors, vectors))
    return of_each


def longest(vectors: np.ndarray) -> float:
    """The length of the longest of (m, d) vectors, 0 if there is none."""
    return float(lengths(vectors).max(initial=0))


def thresholds_of(values: np.ndarray, count: int) -> np.ndarray:
    """(m,) values that at least `count` entries of each row reach, and few others.

    Of wide rows, the largest values of sets of `_SLABS` are partitioned, not all values: as many
    sets as there are largest ones reach it.
    """
    sets = values.shape[1] // _SLABS
    if sets >= 2 * count:
        values = values[:, : sets * _SLABS].reshape(len(values), _SLABS, sets).max(axis=1)
    place = values.shape[1] - count
    thresholds: np.ndarray = np.partition(values, place, axis=1)[:, place]
    return thresholds


def to_float32(stored: np.ndarray, name: str) -> np.ndarray:
    """Convert float16 vectors to float32 in a named buffer; return others as they are."""
    if stored.dtype == np.float32:
        return stored
    wide = scratch(name, stored.shape, np.float32)
    if "torch" in sys.modules:  # in a quarter of the time
        import torch

        torch.from_numpy(wide).copy_(torch.from_numpy(stored))
    else:
        wide[...] = stored
    return wide


def take_float32(stored: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Copy (r,) rows of float16 vectors to float32, in a reused buffer."""
    narrow = scratch("taken", (len(rows), stored.shape[1]), np.float16)
    np.take(stored, rows, axis=0, out=narrow, mode="clip")  # `raise` would copy `out`
    return to_float32(narrow, "taken in float32")


def _filled(count: int) -> int:
    return count + -count % _MULTIPLE


def _rounded(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to bfloat16, as uint16."""
    import torch

    rounded = torch.from_numpy(values.astype(np.float32, copy=False)).to(torch.bfloat16)
    bits: np.ndarray = rounded.view(torch.int16).numpy().view(np.uint16)
    return bits


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
    """Whether torch may use matrix tiles; without any sign of them it is not imported."""
    processors = Path("/proc/cpuinfo")
    if not processors.exists() or " amx_bf16" not in processors.read_text(errors="replace"):
        return False
    import torch

    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


def load_faiss() -> Any:
    """FAISS, imported when it is first needed.

    Where torch or scikit-learn have brought another OpenMP runtime into the process, FAISS
    crashes on macOS as soon as it starts threads; one thread is safe there.
    """
    import faiss

    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)
    return faiss
