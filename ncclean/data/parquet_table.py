"""Columns and rows of Parquet files and Lance data sets, on a disk or in a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from upath import UPath

from ncclean import stores
from ncclean.data.lance_table import is_lance, lance_columns, lance_pieces, read_lance
from ncclean.data.parquet_bounds import inflated_columns, inflated_dictionaries, repeated_texts
from ncclean.data.parquet_footer import Chunk, read_chunks
from ncclean.data.parquet_pages import with_page_sizes
from ncclean.errors import ShardError, one_line
from ncclean.stores import open_parquet

Rows = tuple[int, int]
_PIECE_ROWS = 10_000  # of Lance, which is read from any row


def read_table(url: str, columns: Sequence[str] | None, rows: Rows | None) -> pa.Table:
    """Read the named columns of a Parquet file, as far as it has them, all or some of its rows.

    Raises `ShardError` if it cannot be read.
    """
    if is_lance(url):
        return read_lance(url, columns, rows)
    place = stores.location(url)
    try:
        with open_parquet(place) as file:
            names = file.schema_arrow.names
            wanted = names if columns is None else [name for name in columns if name in names]
            chunks = _chunks(url, place, wanted)
            dictionaries = repeated_texts(file.schema, chunks, file.metadata.num_rows)
            if not dictionaries:
                return _read(url, file, wanted, rows)
            kinds = pa.schema([file.schema_arrow.field(name) for name in wanted])
        with open_parquet(place, dictionaries) as file:
            table = _read(url, file, wanted, rows)
            for what in inflated_dictionaries(table, chunks).values():
                raise ShardError(f"{url}: {what}, so it is not read")
            return table.cast(kinds)
    except (OSError, pa.ArrowException) as error:
        raise ShardError(f"{url} cannot be read as Parquet: {one_line(error)}") from error


def _chunks(url: str, place: UPath, wanted: Sequence[str]) -> list[Chunk]:
    """The chunks of the wanted columns. Raises `ShardError` for what unpacks to too much."""
    chunks: list[Chunk] = []
    for group in read_chunks(place):
        sizes = with_page_sizes(place, [chunk for chunk in group if chunk.column in wanted])
        for what in inflated_columns(sizes).values():
            raise ShardError(f"{url}: {what}, so it is not read")
        chunks += sizes
    return chunks


def _read(
    url: str,
    file: Any,  # a `pyarrow.parquet.ParquetFile`
    wanted: list[str],
    rows: Rows | None,
) -> pa.Table:
    ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)])
    begins = [0, *ends[:-1]]
    first, last = rows or (0, max(file.metadata.num_rows, *ends, 0))
    touched = [n for n, end in enumerate(ends) if end > first and begins[n] < last]
    announced = sum(file.metadata.row_group(number).num_rows for number in touched)
    if rows is None:
        announced = file.metadata.num_rows
    # One by one: of several, Arrow does not read lists as dictionaries.
    groups = [file.read_row_group(number, wanted) for number in touched]
    table = pa.concat_tables(groups) if groups else file.read_row_groups([], wanted)
    before = int(begins[touched[0]]) if touched else 0
    return _whole(url, table, announced).slice(first - before, last - first)


def _whole(url: str, table: pa.Table, announced: int) -> pa.Table:
    """The table; a page whose header is wrong may lose its rows without an error of Arrow's."""
    if table.num_columns and len(table) != announced:
        raise ShardError(f"{url} has {len(table):,} rows, {announced:,} were announced")
    return table


def table_rows(url: str) -> tuple[list[int], pa.Schema]:
    """Rows of each row group of a Parquet file, and its columns. Raises as `read_table` does.

    A Lance data set has pieces in place of row groups.
    """
    if is_lance(url):
        pieces = lance_pieces(url, _PIECE_ROWS)
        return [piece.last - piece.first for piece in pieces], lance_columns(url)
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
        raise ShardError(f"{url} cannot be read as Parquet: {one_line(error)}") from error


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


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
