"""Rows of csv, tsv, jsonl and Parquet files, broken ones included, from anywhere in the file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pyarrow as pa

from ncclean import stores
from ncclean.data.arrow_values import python_values
from ncclean.data.images.class_folders import class_rows
from ncclean.data.images.columns import shared_path
from ncclean.data.images.karpathy import karpathy_rows
from ncclean.data.images.npc import npc_rows
from ncclean.data.images.row_units import cut_rows
from ncclean.data.images.text_rows import LINES, BrokenRow, LeftOut, Row, TextRows, row_keys
from ncclean.data.lance_table import is_lance, lance_batches, lance_columns
from ncclean.data.parquet_bounds import (
    BATCH_BYTES,
    check_rows,
    inflated_columns,
    is_text,
    longest_text,
    rows_at_once,
    texts,
    unpacked_bytes,
)
from ncclean.data.parquet_footer import read_chunks
from ncclean.data.parquet_pages import with_page_sizes
from ncclean.data.parquet_table import vector_columns
from ncclean.data.sample_groups import json_object
from ncclean.data.shards import ShardRef
from ncclean.data.text_budget import LARGEST_TEXT
from ncclean.errors import ShardError, one_line

TABLE = "table"
_BATCH_ROWS = 64
_ROWS_LOOKED_AT = 100  # for one that is not broken


class ParquetRow(Row):
    """A row of a Parquet file, and where it lies: place in a batch, and the schema of the file.

    The batch has every column, those of vectors too, but for those that are too large to be read;
    its texts may be dictionaries.
    """

    __slots__ = ("batch", "place", "schema")

    def __init__(self, values: Row, batch: pa.RecordBatch, place: int, schema: pa.Schema) -> None:
        super().__init__(values)
        self.batch, self.place, self.schema = batch, place, schema


def rows_of(shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
    """The rows of a unit of a table under lower-case names; `whole` ones of Parquet `ParquetRow`s.

    Raises `ShardError` if the file cannot be opened, and at the end if parts of it could not be
    read: their rows are `BrokenRow`s.
    """
    layout, *splits = shard.layout.split(":")
    if layout == "classes":
        return class_rows(shard)
    if layout == "npc":
        return npc_rows(shard)
    if layout == "karpathy":
        count = shard.rows[1] - shard.rows[0] if shard.rows is not None else None
        return karpathy_rows(shard.url, splits, shard.offset, count)
    if layout == "lance":
        return _lance_rows(shard)
    is_parquet = shard.url.endswith(".parquet")
    return _parquet_rows(shard, whole) if is_parquet else _text_rows(shard)


def written_names(shard: ShardRef) -> dict[str, str]:
    """The names of a table's columns as they are written, by their lower-case form.

    Those of jsonl are the first that a row of the unit has. Raises `ShardError` if the table cannot
    be read.
    """
    if shard.layout != TABLE:
        return {}
    try:
        if shard.url.endswith(".parquet"):
            names: Iterable[str] = cast(pa.Schema, columns_of(shard.url)).names
        elif shard.url.endswith(LINES):
            names = _names_of_lines(shard)
        else:
            with TextRows(shard.url) as rows:
                names = rows.written_names
    except OSError as error:
        raise ShardError(f"cannot be read: {one_line(error)}") from error
    return {key: name for name, key in row_keys(names).items()}


def _names_of_lines(shard: ShardRef) -> list[str]:
    names: dict[str, None] = {}
    with TextRows(shard.url, parse=False) as lines:
        lines.seek(shard.offset)
        count = shard.rows[1] - shard.rows[0] if shard.rows is not None else None
        for line in itertools.islice(lines, count):
            names |= dict.fromkeys(json_object(line.encode("utf-8", "surrogateescape")) or {})
    return list(names)


def columns_of(url: str) -> pa.Schema | list[str]:
    """The columns of a table: names alone for text. Raises `ShardError` if it cannot be read."""
    try:
        if is_lance(url):
            return lance_columns(url)
        if url.endswith(".parquet"):
            with stores.open_parquet(stores.location(url)) as file:
                return file.schema_arrow
        with TextRows(url) as rows:
            if rows.names:
                return rows.names
            looked_at = itertools.islice(rows, _ROWS_LOOKED_AT)
            # Of any row: one whose names are broken must not hide the others.
            return list(
                dict.fromkeys(name for row in looked_at if isinstance(row, dict) for name in row)
            )
    except (OSError, pa.ArrowException) as error:
        raise ShardError(f"{url} cannot be read: {one_line(error)}") from error


def text_units(
    url: str, unit_rows: int, image_key: str | None = None
) -> list[tuple[int, int, int]]:
    """Cuts a text table into units: the first row of each, the row after its last, its offset.

    The offset is the byte at which its first row begins. Raises `ShardError` if the file cannot be
    read.
    """
    try:
        with TextRows(url, parse=False) as rows:
            return cut_rows(
                rows, unit_rows, path_of=lambda row: shared_path(rows.row_of(row), image_key)
            )
    except OSError as error:
        raise ShardError(f"{url} cannot be read: {one_line(error)}") from error


def _text_rows(shard: ShardRef) -> Iterator[Row | BrokenRow]:
    count = shard.rows[1] - shard.rows[0] if shard.rows is not None else None
    try:
        with TextRows(shard.url) as rows:
            rows.seek(shard.offset)
            yield from itertools.islice(rows, count)
    except OSError as error:
        raise ShardError(f"cannot be read: {one_line(error)}") from error


def _parquet_rows(shard: ShardRef, whole: bool) -> Iterator[Row | BrokenRow]:
    first, last = shard.rows or (0, 1 << 62)
    failure = ""
    place = stores.location(shard.url)
    try:
        chunks = read_chunks(place)
        file = stores.open_parquet(place)
        schema = file.schema_arrow
        if lists := [one.path for one in texts(file.schema) if one.max_repetition_level]:
            file.close()
            file = stores.open_parquet(place, lists)
    except (OSError, pa.ArrowException) as error:
        raise ShardError(f"cannot be read: {one_line(error)}") from error
    with file:
        check_rows(min(last, file.metadata.num_rows) - first, shard.size)
        vectors = vector_columns(file.schema_arrow)
        keys = row_keys(file.schema_arrow.names)
        columns = [name for name in file.schema_arrow.names if whole or name not in vectors]
        text_names = {field.name for field in file.schema_arrow if is_text(field.type)}
        end = 0
        for group in range(file.num_row_groups):
            begin, end = end, end + file.metadata.row_group(group).num_rows
            if end <= first or begin >= last:
                continue
            done = begin
            try:
                sizes = with_page_sizes(place, chunks[group])
                inflated = inflated_columns(sizes)
                left_out = {keys[name]: LeftOut(what) for name, what in inflated.items()}
                kept = [name for name in columns if name not in inflated]
                pages = [one for one in sizes if one.column in kept]
                # One row at a time where each may have a text that is too large.
                is_large = any(
                    one.largest > LARGEST_TEXT and one.column in text_names for one in pages
                )
                for batch in file.iter_batches(
                    1 if is_large else rows_at_once(pages, _BATCH_ROWS),
                    row_groups=[group],
                    columns=kept if len(kept) < len(file.schema_arrow) else None,
                ):
                    shown: dict[str, pa.Array] = {}
                    for name, column in zip(batch.schema.names, batch.columns, strict=True):
                        if name not in vectors:
                            shown.setdefault(keys[name], column)
                    read = zip(*itertools.starmap(_values, shown.items()), strict=True)
                    for number, values in enumerate(read):
                        done += 1
                        if done > end:
                            continue
                        row = {**dict(zip(shown, values, strict=True)), **left_out}
                        yield ParquetRow(row, batch, number, schema) if whole else row
                if done != end:  # of pages whose headers are wrong
                    raise ValueError(f"{done - begin} rows, {end - begin} were announced")
            except (OSError, pa.ArrowException, ValueError) as error:
                failure = failure or f"row group {group} cannot be read: {one_line(error)}"
                for _ in range(end - done):
                    yield BrokenRow(failure)
        if end != file.metadata.num_rows:
            failure = failure or f"{end} rows, {file.metadata.num_rows} were announced"
    if failure:
        raise ShardError(failure)


def _lance_rows(shard: ShardRef) -> Iterator[Row | BrokenRow]:
    first, last = shard.rows or (0, 0)
    schema = lance_columns(shard.url)
    vectors = vector_columns(schema)
    columns = [name for name in schema.names if name not in vectors]
    names = [name.lower() for name in columns]
    batches = lance_batches(shard.url, columns, (first, last), _BATCH_ROWS, shard.version)
    done = first
    try:
        for batch in batches:
            for values in zip(*map(_values, names, batch.columns), strict=True):
                done += 1
                yield dict(zip(names, values, strict=True))
        if done < last:
            raise ShardError(f"{done - first} rows, {last - first} were announced")
    except ShardError as error:
        yield from (BrokenRow(str(error)) for _ in range(last - done))
        raise


def _values(name: str, column: pa.Array) -> list[Any]:
    """The values of a column; in place of rows that unpack to too much, why.

    Of text that is less: what is held of a pair until its shard is finished, an image is not.
    """
    size = unpacked_bytes(column)
    if size > BATCH_BYTES or longest_text(column) > LARGEST_TEXT:
        if len(column) == 1:
            return [LeftOut(f"column {name} unpacks to {size:,} bytes in one row")]
        return [one for row in range(len(column)) for one in _values(name, column.slice(row, 1))]
    return python_values(column)
