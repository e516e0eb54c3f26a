"""Rows of csv, tsv, jsonl and Parquet files, broken ones included, from anywhere in the file."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from ncclean import stores
from ncclean.data.embeddings.vectors import vector_columns
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

SEPARATED = (".csv", ".tsv")
LINES = (".jsonl", ".ndjson")
# A quote that is never closed would make one field of the rest of the file.
_LONGEST_FIELD = 1 << 20
_BATCH_ROWS = 64
_ROWS_LOOKED_AT = 100  # for one that is not broken
_BLOCK_BYTES = 8 << 20  # of an object store
_BOM = "\ufeff"

Row = dict[str, Any]


@dataclass(frozen=True)
class BrokenRow:
    """A row that cannot be read, and why."""

    what: str


def rows_of(shard: ShardRef) -> Iterator[Row | BrokenRow]:
    """The rows of a unit of a table under lower-case names.

    Raises `ShardError` if the file cannot be opened, and at the end if parts of it could not be
    read: their rows are `BrokenRow`s.
    """
    return _parquet_rows(shard) if shard.url.endswith(".parquet") else _text_rows(shard)


def columns_of(url: str) -> pa.Schema | list[str]:
    """The columns of a table: names alone for text. Raises `ShardError` if it cannot be read."""
    try:
        if url.endswith(".parquet"):
            with stores.open_parquet(stores.location(url)) as file:
                return file.schema_arrow
        with _open_text(url) as lines:
            if url.endswith(SEPARATED):
                return _header(url, lines)[0]
            rows = itertools.islice(_json_rows(lines), _ROWS_LOOKED_AT)
            # Of any row: one whose names are broken must not hide the others.
            return list(
                dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row)
            )
    except (OSError, pa.ArrowException, csv.Error) as error:
        raise ShardError(f"{url} cannot be read: {_one_line(error)}") from error


def text_units(url: str, unit_rows: int) -> list[tuple[int, int, int]]:
    """Cuts a text table into units: the first row of each, the row after its last, its offset.

    The offset is the byte at which its first row begins. Raises `ShardError` if the file cannot be
    read.
    """
    units: list[tuple[int, int, int]] = []
    try:
        with _open_text(url) as stream:
            counted = _CountedLines(stream)
            if url.endswith(SEPARATED):
                _, dialect, counted.offset = _header(url, stream)
                rows = _separated_rows(counted, [], dialect)
            else:
                rows = _json_rows(counted)
            first, begin = 0, counted.offset
            count = 0
            for count, _ in enumerate(rows, 1):
                if count - first == unit_rows:
                    units.append((first, count, begin))
                    first, begin = count, counted.offset
            if count > first:
                units.append((first, count, begin))
    except (OSError, csv.Error) as error:
        raise ShardError(f"{url} cannot be read: {_one_line(error)}") from error
    return units


class _CountedLines:
    """Lines of a text, and how many bytes of it have been read."""

    def __init__(self, lines: Iterator[str] | io.TextIOBase) -> None:
        self._lines = iter(lines)
        self.offset = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.offset += len(line.encode("utf-8", "surrogateescape"))
        return line


def _text_rows(shard: ShardRef) -> Iterator[Row | BrokenRow]:
    count = shard.rows[1] - shard.rows[0] if shard.rows is not None else None
    try:
        with _open_text(shard.url) as stream:
            if shard.url.endswith(SEPARATED):
                names, dialect, begin = _header(shard.url, stream)
                stream.seek(shard.offset or begin)
                rows = _separated_rows(stream, names, dialect)
            else:
                stream.seek(shard.offset)
                rows = _json_rows(stream)
            for number, row in enumerate(rows):
                if number == count:
                    return
                yield row
    except (OSError, csv.Error) as error:
        raise ShardError(f"cannot be read: {_one_line(error)}") from error


def _separated_rows(
    lines: Iterator[str] | io.TextIOBase, names: list[str], dialect: type[csv.Dialect]
) -> Iterator[Row | BrokenRow]:
    """Rows under `names`; without names, rows that only count."""
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(lines, dialect)
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            yield BrokenRow(_one_line(error))
            continue
        if fields is None:
            return
        if not fields:  # an empty line
            continue
        if len(fields) > len(names) > 0:
            yield BrokenRow(f"{len(fields)} fields under {len(names)} names")
            continue
        yield dict(zip(names, fields, strict=False))


def _json_rows(lines: Iterator[str] | io.TextIOBase) -> Iterator[Row | BrokenRow]:
    for number, line in enumerate(lines):
        text = line.removeprefix(_BOM).strip() if number == 0 else line.strip()
        if not text:
            continue
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield BrokenRow(f"no JSON: {_one_line(error)}")
            continue
        if isinstance(parsed, dict):
            yield {str(name).lower(): value for name, value in parsed.items()}
        else:
            yield BrokenRow("no JSON object")


def _parquet_rows(shard: ShardRef) -> Iterator[Row | BrokenRow]:
    first, last = shard.rows or (0, 1 << 62)
    failure = ""
    try:
        file = stores.open_parquet(stores.location(shard.url))
    except (OSError, pa.ArrowException) as error:
        raise ShardError(f"cannot be read: {_one_line(error)}") from error
    with file:
        vectors = vector_columns(file.schema_arrow)
        columns = [name for name in file.schema_arrow.names if name not in vectors]
        end = 0
        for group in range(file.num_row_groups):
            begin, end = end, end + file.metadata.row_group(group).num_rows
            if end <= first or begin >= last:
                continue
            done = begin
            try:
                for batch in file.iter_batches(
                    _BATCH_ROWS, row_groups=[group], columns=columns if vectors else None
                ):
                    names = [name.lower() for name in batch.schema.names]
                    for values in zip(*(_values(column) for column in batch.columns), strict=True):
                        done += 1
                        if done <= end:
                            yield dict(zip(names, values, strict=True))
                if done != end:  # of pages whose headers are wrong
                    raise ValueError(f"{done - begin} rows, {end - begin} were announced")
            except (OSError, pa.ArrowException, ValueError) as error:
                failure = failure or f"row group {group} cannot be read: {_one_line(error)}"
                for _ in range(end - done):
                    yield BrokenRow(failure)
        if end != file.metadata.num_rows:
            failure = failure or f"{end} rows, {file.metadata.num_rows} were announced"
    if failure:
        raise ShardError(failure)


def _values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (UnicodeDecodeError, ValueError, OverflowError):  # one bad value costs only itself
        return [_value(value) for value in column]


def _value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return value.as_buffer().to_pybytes()
    except (ValueError, OverflowError):
        return None


def _open_text(url: str) -> io.TextIOWrapper:
    """A text whose undecodable bytes stay what they are."""
    stream: BinaryIO = (
        stores.open_binary(url, block_bytes=_BLOCK_BYTES, blocks=4)
        if stores.is_url(url)
        else open(url, "rb")  # noqa: SIM115  the caller closes it
    )
    return io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="")


def _header(url: str, stream: io.TextIOWrapper) -> tuple[list[str], type[csv.Dialect], int]:
    """Names of the columns, the dialect, and the byte at which rows begin; reads on from there.

    Tabs where the first line has tabs and no comma: open_clip's own csv files do.
    """
    first = stream.readline()
    stream.seek(0)
    has_tabs = "\t" in first and ("," not in first or url.endswith(".tsv"))
    dialect = csv.excel_tab if has_tabs else csv.excel
    counted = _CountedLines(stream)
    names = next(csv.reader(counted, dialect), [])
    return [name.removeprefix(_BOM).strip().lower() for name in names], dialect, counted.offset


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
