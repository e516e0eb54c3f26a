"""Columns and rows of Parquet files, on a disk or in a store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ncclean import stores
from ncclean.data.parquet_bounds import inflated_columns
from ncclean.data.parquet_footer import read_chunks
from ncclean.data.parquet_pages import with_page_sizes
from ncclean.errors import ShardError, one_line
from ncclean.stores import open_parquet

Rows = tuple[int, int]


def read_table(url: str, columns: Sequence[str] | None, rows: Rows | None) -> pa.Table:
    """Read the named columns of a Parquet file, as far as it has them, all or some of its rows.

    Raises `ShardError` if it cannot be read.
    """
    try:
        with open_parquet(stores.location(url)) as file:
            names = file.schema_arrow.names
            wanted = names if columns is None else [name for name in columns if name in names]
            place = stores.location(url)
            for chunks in read_chunks(place):
                of_wanted = [chunk for chunk in chunks if chunk.column in wanted]
                for what in inflated_columns(with_page_sizes(place, of_wanted)).values():
                    raise ShardError(f"{url}: {what}, so it is not read")
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
        raise ShardError(f"{url} cannot be read as Parquet: {one_line(error)}") from error


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
