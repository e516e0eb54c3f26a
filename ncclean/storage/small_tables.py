"""Small Parquet tables that people hand on: decisions and causes, read whole within bounds."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ncclean import stores
from ncclean.data.parquet_bounds import check_rows
from ncclean.data.parquet_table import read_table, table_rows
from ncclean.errors import InputError, ShardError, one_line
from ncclean.regular_files import why_missing


def read_small_table(path: str, schema: pa.Schema, what: str) -> list[dict[str, Any]]:
    """Read the rows of a Parquet file, its columns cast to those of `schema`.

    `what` it should have, such as "decisions of `ncclean review`", is said where it lacks a column.
    Raises `InputError` for any other file, and for one that stands for more than it can hold.
    """
    place = stores.location(path)
    if not stores.ask("read", path, place.is_file):
        raise InputError(why_missing(path))
    try:
        groups, there = table_rows(path)
        missing = [name for name in schema.names if name not in there.names]
        if missing:
            raise InputError(f"{path} has no {what}: it lacks {', '.join(missing)}")
        check_rows(sum(groups), stores.ask("read", path, place.stat).st_size)
        table = read_table(path, schema.names, None)
        table = table.select(schema.names).cast(schema)
        rows: list[dict[str, Any]] = _with_python_times(table).to_pylist()
    except (ShardError, ValueError, OverflowError, pa.ArrowException) as error:
        why = one_line(error)
        raise InputError(why if path in why else f"{path} cannot be read: {why}") from error
    return rows


def _with_python_times(table: pa.Table) -> pa.Table:
    """The table with times before the year 1 and after 9999, which Python lacks, at these ends."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            zone = datetime.timezone.utc if field.type.tz else None
            ends = (datetime.datetime.min, datetime.datetime.max)
            first, last = (
                pa.scalar(end.replace(tzinfo=zone), field.type).cast(pa.int64()) for end in ends
            )
            # Arrow compares no times with zones element by element.
            times = table.column(number).cast(pa.int64())
            times = pc.max_element_wise(times, first, skip_nulls=False)
            times = pc.min_element_wise(times, last, skip_nulls=False)
            table = table.set_column(number, field, times.cast(field.type))
    return table


def check_is_small(path: str) -> None:
    """Raise `InputError` for a Parquet file that announces more rows than its bytes can hold."""
    try:
        groups, _ = table_rows(path)
        size = stores.ask("read", path, stores.location(path).stat).st_size
        check_rows(sum(groups), size)
    except ShardError as error:
        why = one_line(error)
        raise InputError(why if path in why else f"{path} cannot be read: {why}") from error
