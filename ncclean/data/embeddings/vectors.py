"""Read matrices of floats from `.npy` files, on a disk or in a store."""

from __future__ import annotations

import io
import lzma
import os
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy

from ncclean.base import stores
from ncclean.base.regular_files import check_is_file
from ncclean.base.store_errors import explain
from ncclean.data.parquet_table import Rows
from ncclean.errors import ShardError, one_line

# An npy header is rarely longer than 128 bytes.
_HEADER_BYTES = 16 << 10
# What NumPy and zipfile raise for a broken file; a broken length requests any amount of memory.
BROKEN = (
    OSError,
    ValueError,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    KeyError,
    lzma.LZMAError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Header:
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    size: int  # bytes before the first element


def npy_shape(url: str) -> tuple[int, int]:
    """Return the shape of a `.npy` matrix of floats. Raises `ShardError` for another array."""
    return _matrix_shape(url, _npy_header(url))


def read_npy(url: str, rows: Rows | None = None) -> np.ndarray:
    """Read the (n, d) floats of a `.npy` file, all or a range of rows; map local files.

    Raises `ShardError` if the file is not a matrix of floats, or is truncated.
    """
    header = _npy_header(url)
    count, dim = _matrix_shape(url, header)
    first, last = rows or (0, count)
    try:
        if not stores.is_url(url):
            # Copy-on-write: torch wants writable memory.
            size = header.size + count * dim * header.dtype.itemsize
            if (actual := os.stat(url).st_size) < size:
                raise ShardError(f"{url} is cut short: {actual:,} of {size:,} bytes are there")
            matrix: np.ndarray = np.load(url, mmap_mode="c", allow_pickle=False)[first:last]
            return matrix
        if header.is_fortran:
            whole: np.ndarray = np.load(io.BytesIO(stores.read_bytes(stores.location(url))))
            return whole[first:last]
        width = dim * header.dtype.itemsize
        begin, end = header.size + first * width, header.size + last * width
        data = stores.read_range(url, begin, end) if end > begin else b""
        return np.frombuffer(bytearray(data), header.dtype).reshape(last - first, dim)
    except BROKEN as error:
        raise ShardError(f"{url} cannot be read: {one_line(error)}") from error


def _npy_header(url: str) -> Header:
    try:
        if stores.is_url(url):
            system, path = stores.filesystem(url)
            start = stores.patiently(system.cat_file, path, start=0, end=_HEADER_BYTES)
            return read_header(url, io.BytesIO(start))
        check_is_file(url)
        with open(url, "rb") as file:
            return read_header(url, file)
    except OSError as error:
        raise ShardError(explain(url, error, "read")) from error


def read_header(url: str, file: Any) -> Header:
    try:
        start = io.BytesIO(file.read(_HEADER_BYTES))  # it may claim gigabytes
        version = npy.read_magic(start)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(start)
    except BROKEN as error:
        raise ShardError(f"{url} is not a .npy matrix: {one_line(error)}") from error
    return Header(shape, is_fortran, dtype, start.tell())


def _matrix_shape(url: str, header: Header) -> tuple[int, int]:
    check_matrix(url, header.shape, header.dtype)
    return header.shape[0], header.shape[1]


def check_matrix(what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if len(shape) != 2 or dtype.kind != "f" or shape[1] == 0:
        raise ShardError(f"{what} must be an (n, d) matrix of floats, got {dtype} {shape}")
