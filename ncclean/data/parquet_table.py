"""Read columns and rows of Parquet files and Lance data sets, on a disk or in a store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ncclean.base import stores
from ncclean.base.stores import open_parquet
from ncclean.data.fingerprints import as_metadata, fingerprints_of
from ncclean.data.lance_table import is_lance, lance_columns, lance_pieces, read_lance
from ncclean.errors import ShardError, one_line
from ncclean.workers.call import contained_once

Rows = tuple[int, int]
_PIECE_ROWS = 10_000  # for Lance, which can start at any row
_BATCH_ROWS = 1024
_MOST_BYTES, _MOST_UNPACKED = 2 << 30, 4  # of a table in memory: bytes, and times its file
_ROWS_OF_A_SMALL_FILE = 100_000


def check_rows(rows: int, size: int) -> None:
    """Raise `ShardError` for more rows than `size` bytes account for.

    An image, or its path and a caption, takes more than a byte; billions of nulls take kilobytes.
    """
    if rows > _ROWS_OF_A_SMALL_FILE + size:
        raise ShardError(f"announces {rows:,} rows in {size:,} bytes, so it is not read")


def read_table(url: str, columns: Sequence[str] | None, rows: Rows | None) -> pa.Table:
    """Read the named columns of a Parquet file that exist, for all or some of its rows.

    Raises `ShardError` if it cannot be read, or takes far more memory than its bytes account for.
    """
    if is_lance(url):
        return read_lance(url, columns, rows)
    try:
        batches, size = [], 0
        reading = contained_once(read_batches, url, columns, rows)
        schema, announced, packed = next(reading)
        most = max(_MOST_BYTES, _MOST_UNPACKED * packed)
        for batch in reading:
            batches.append(batch)
            size += batch.nbytes
            if size > most:
                raise ShardError(f"{url} unpacks to more than {most:,} bytes, so it is not read")
    except MemoryError as error:
        raise ShardError(f"{url} needs more memory than its rows may take") from error
    except (OSError, pa.ArrowException) as error:
        raise ShardError(f"{url} cannot be read as Parquet: {one_line(error)}") from error
    table = pa.Table.from_batches(batches, schema)
    if table.num_columns and len(table) != announced:  # a page with a wrong header
        raise ShardError(f"{url} has {len(table):,} rows, {announced:,} were announced")
    return table


def read_batches(url: str, columns: Sequence[str] | None, rows: Rows | None) -> Iterator[Any]:
    """Yield the named columns of a Parquet file, batch by batch, for all or some of its rows.

    The schema, the number of rows and the file's bytes come first. Raises as `read_table` does.
    """
    place = stores.location(url)
    with stores.open_parquet(place) as file:
        schema = file.schema_arrow
        names = schema.names if columns is None else [n for n in columns if n in schema.names]
        ends = np.cumsum(
            [0, *(file.metadata.row_group(n).num_rows for n in range(file.num_row_groups))]
        )
        first, last = rows or (0, file.metadata.num_rows)
        last = min(last, file.metadata.num_rows)
        # The rest of the metadata may be large, and says nothing here.
        carried = as_metadata(fingerprints_of(schema))
        kinds = pa.schema([schema.field(name) for name in names], carried)
        yield kinds, max(last - first, 0), stores.patiently(place.stat).st_size
        for group, (begin, end) in enumerate(itertools.pairwise(ends.tolist())):
            if end <= first or begin >= last:
                continue
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
                end = begin + batch.num_rows
                if end > first and begin < last:
                    yield batch.slice(max(first - begin, 0), min(last, end) - max(first, begin))
                begin = end


def table_rows(url: str) -> tuple[list[int], pa.Schema]:
    """Return the rows of each row group of a Parquet file, and its columns.

    A Lance data set has pieces instead of row groups. Raises as `read_table` does.
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
    """Return columns of lists of floats, with their length where the type states it."""
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
