"""Matrices of embeddings in `.npy`, `.npz` and Parquet files, on a disk or in a store."""

from __future__ import annotations

import io
import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib import format as npy

from ncclean import stores
from ncclean.data.parquet_bounds import inflated_columns
from ncclean.errors import ShardError
from ncclean.stores import open_parquet

Rows = tuple[int, int]
# Floats that are not all alike do not shrink to a two hundredth.
_LARGEST_RATIO = 200
_WORTH_A_LOOK = 256 << 20
# An npy header is rarely longer than 128 bytes.
_HEADER_BYTES = 16 << 10
# What NumPy and zipfile raise for a file that is broken; a broken length asks for any memory.
_BROKEN = (
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
class _Header:
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    size: int  # bytes before the first element


def npy_shape(url: str) -> tuple[int, int]:
    """Rows and dimensions of a `.npy` matrix. Raises `ShardError` if it is none of floats."""
    return _matrix_shape(url, _npy_header(url))


def read_npy(url: str, rows: Rows | None = None) -> np.ndarray:
    """(n, d) floats, or the rows from one number to another; a local file is memory-mapped.

    Raises `ShardError` if the file is not a matrix of floats, or is cut short.
    """
    header = _npy_header(url)
    count, dim = _matrix_shape(url, header)
    first, last = rows or (0, count)
    try:
        if not stores.is_url(url):
            # Copy-on-write: torch wants memory that could be written.
            matrix: np.ndarray = np.load(url, mmap_mode="c", allow_pickle=False)[first:last]
            return matrix
        if header.is_fortran:
            whole: np.ndarray = np.load(io.BytesIO(stores.read_bytes(stores.location(url))))
            return whole[first:last]
        width = dim * header.dtype.itemsize
        begin, end = header.size + first * width, header.size + last * width
        data = stores.read_range(url, begin, end) if end > begin else b""
        return np.frombuffer(bytearray(data), header.dtype).reshape(last - first, dim)
    except _BROKEN as error:
        raise ShardError(f"{url} cannot be read: {_one_line(error)}") from error


def npz_shapes(url: str) -> dict[str, tuple[int, ...]]:
    """The arrays of an `.npz` and their shapes. Raises `ShardError` if it cannot be read."""
    with _npz(url) as archive:
        shapes = {}
        for name in archive.namelist():
            try:
                with archive.open(name) as member:
                    shapes[name.removesuffix(".npy")] = _header(url, member).shape
            except _BROKEN as error:
                raise ShardError(f"{url}: {name} cannot be read: {_one_line(error)}") from error
        return shapes


def read_npz(url: str, keys: Sequence[str], rows: int) -> list[np.ndarray]:
    """Several (n, d) matrices of floats of one `.npz`, of `rows` rows each.

    Raises `ShardError` if one is not there, or is another size than it should be: before it is
    unpacked, as a few bytes may stand for gigabytes.
    """
    with _npz(url) as archive:
        names = set(archive.namelist())
        matrices = []
        for key, what in zip(keys, ("image", "caption"), strict=True):
            if f"{key}.npy" not in names:
                there = ", ".join(sorted(name.removesuffix(".npy") for name in names))
                raise ShardError(f"{url} has no {key}: it has {there}")
            try:
                with archive.open(f"{key}.npy") as member:
                    header = _header(url, member)
                _check_matrix(f"{key} of {url}", header.shape, header.dtype)
                _check_size(url, key, header, archive.getinfo(f"{key}.npy"), rows, what)
                with archive.open(f"{key}.npy") as member:
                    matrix: np.ndarray = npy.read_array(member, allow_pickle=False)
            except _BROKEN as error:
                raise ShardError(f"{url}: {key} cannot be read: {_one_line(error)}") from error
            matrices.append(matrix)
        return matrices


def _check_size(
    url: str, key: str, header: _Header, member: zipfile.ZipInfo, rows: int, what: str
) -> None:
    if header.shape[0] != rows:
        raise ShardError(f"{url} has {rows:,} rows for {header.shape[0]:,} {what} embeddings")
    size = header.size + header.shape[0] * header.shape[1] * header.dtype.itemsize
    if member.file_size != size:
        raise ShardError(f"{url}: {key} has {member.file_size:,} bytes, {size:,} were announced")
    if size > max(_WORTH_A_LOOK, _LARGEST_RATIO * member.compress_size):
        raise ShardError(
            f"{url}: {key} unpacks from {member.compress_size:,} to {size:,} bytes: not read"
        )


def vector_columns(schema: pa.Schema) -> dict[str, int | None]:
    """Columns whose values are lists of floats, with their length where the type says it."""
    columns: dict[str, int | None] = {}
    for field in schema:
        kind = field.type
        if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
            columns[field.name] = kind.list_size
        elif _is_list(kind) and pa.types.is_floating(kind.value_type):
            columns[field.name] = None
    return columns


def column_matrix(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) floats of a column of lists, and (n,) lengths: -1 where there is none.

    d is the commonest length; the rows of another one are NaN.
    """
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy().astype(np.int64)
    lengths_seen, counts = np.unique(lengths[lengths >= 0], return_counts=True)
    dim = int(lengths_seen[counts.argmax()]) if len(lengths_seen) else 0
    fits = lengths == dim
    kept = column if fits.all() else column.filter(pa.array(fits))
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in kept.chunks]
    flat = np.concatenate(values) if values else np.empty(0, np.float32)
    if fits.all():
        return flat.reshape(-1, dim), lengths
    matrix = np.full((len(lengths), dim), np.nan, flat.dtype)
    matrix[fits] = flat.reshape(-1, dim)
    return matrix, lengths


def read_table(url: str, columns: Sequence[str] | None, rows: Rows | None) -> pa.Table:
    """Columns of a Parquet file, those of the given names that it has, or some of their rows.

    Raises `ShardError` if it cannot be read.
    """
    try:
        with open_parquet(stores.location(url)) as file:
            names = file.schema_arrow.names
            wanted = names if columns is None else [name for name in columns if name in names]
            groups = range(file.num_row_groups)
            inflated = {k: v for n in groups for k, v in inflated_columns(file, n).items()}
            if refused := [what for name, what in inflated.items() if name in wanted]:
                raise ShardError(f"{url}: {refused[0]}, so it is not read")
            if rows is None:
                return _whole(url, file.read(wanted), file.metadata.num_rows)
            ends = np.cumsum(
                [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            )
            touched = [
                number
                for number, end in enumerate(ends)
                if end > rows[0] and (ends[number - 1] if number else 0) < rows[1]
            ]
            announced = sum(file.metadata.row_group(number).num_rows for number in touched)
            table = _whole(url, file.read_row_groups(touched, wanted), announced)
            before = int(ends[touched[0] - 1]) if touched and touched[0] else 0
            return table.slice(rows[0] - before, rows[1] - rows[0])
    except (OSError, pa.ArrowException) as error:
        raise ShardError(f"{url} cannot be read as Parquet: {_one_line(error)}") from error


def _whole(url: str, table: pa.Table, announced: int) -> pa.Table:
    """The table; a page whose header is wrong may lose its rows without an error of Arrow's."""
    if table.num_columns and len(table) != announced:
        raise ShardError(f"{url} has {len(table):,} rows, {announced:,} were announced")
    return table


def table_rows(url: str) -> tuple[list[int], pa.Schema]:
    """Rows of each row group of a Parquet file, and its columns. Raises as `read_table` does."""
    try:
        with open_parquet(stores.location(url)) as file:
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            if sum(groups) != file.metadata.num_rows:
                raise ShardError(
                    f"{url} has {sum(groups):,} rows in its row groups, "
                    f"{file.metadata.num_rows:,} were announced"
                )
            return groups, file.schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise ShardError(f"{url} cannot be read as Parquet: {_one_line(error)}") from error


def _npy_header(url: str) -> _Header:
    try:
        if stores.is_url(url):
            system, path = stores.filesystem(url)
            start = stores.patiently(system.cat_file, path, start=0, end=_HEADER_BYTES)
            return _header(url, io.BytesIO(start))
        stores.check_is_file(url)
        with open(url, "rb") as file:
            return _header(url, file)
    except OSError as error:
        raise ShardError(stores.explain(url, error, "read")) from error


def _header(url: str, file: Any) -> _Header:
    try:
        start = io.BytesIO(file.read(_HEADER_BYTES))  # it may claim to have gigabytes
        version = npy.read_magic(start)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(start)
    except _BROKEN as error:
        raise ShardError(f"{url} is not a .npy matrix: {_one_line(error)}") from error
    return _Header(shape, is_fortran, dtype, start.tell())


def _matrix_shape(url: str, header: _Header) -> tuple[int, int]:
    _check_matrix(url, header.shape, header.dtype)
    return header.shape[0], header.shape[1]


def _check_matrix(what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if len(shape) != 2 or dtype.kind != "f" or shape[1] == 0:
        raise ShardError(f"{what} must be an (n, d) matrix of floats, got {dtype} {shape}")


def _npz(url: str) -> zipfile.ZipFile:
    try:
        source: str | BinaryIO = url
        if stores.is_url(url):
            source = io.BytesIO(stores.read_bytes(stores.location(url)))
        stores.check_is_file(url)
        return zipfile.ZipFile(source)
    except _BROKEN as error:
        raise ShardError(f"{url} cannot be read as .npz: {_one_line(error)}") from error


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
