"""Exported rows as Parquet: those of Parquet files keep their types, others have what fits."""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import stores
from ncclean.data.images.arrow_rows import ParquetRow
from ncclean.data.images.text_rows import row_keys
from ncclean.exporting.rows import ExportedRow
from ncclean.json_values import json_text

_GROUP_BYTES = 64 << 20  # of images in a row group: a viewer reads one whole
_GROUP_ROWS = 10_000
_IMAGE_TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
_HUGGING_FACE = b"huggingface"
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


class ParquetPieces:
    """Writes rows to Parquet files in `folder`, a new one where the schema changes.

    `types` are those of added columns.
    """

    def __init__(self, folder: Path, types: Mapping[str, pa.DataType]) -> None:
        self.files: list[Path] = []
        self._folder = folder
        self._types = types
        self._rows: list[ExportedRow] = []
        self._bytes = 0
        self._writer: Any = None  # a `ParquetWriter`

    def add(self, rows: Sequence[ExportedRow], size: int = 0) -> None:
        """Add the rows of a sample, and of its image in them the `size` in bytes."""
        self._rows += rows
        self._bytes += size
        if self._bytes >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def finish(self) -> list[Path]:
        """Write what is left; returns the files."""
        self._flush()
        if self._writer is not None:
            self._writer.close()
        return self.files

    def _flush(self) -> None:
        for table in tables_of(self._rows, self._types):
            if self._writer is None or not self._writer.schema.equals(table.schema, True):
                if self._writer is not None:
                    self._writer.close()
                self.files.append(self._folder / f"{len(self.files):05d}.parquet")
                self._writer = pq.ParquetWriter(self.files[-1], table.schema)
            self._writer.write_table(table, row_group_size=len(table))
        self._rows, self._bytes = [], 0


def tables_of(rows: Sequence[ExportedRow], types: Mapping[str, pa.DataType]) -> Iterator[pa.Table]:
    """The rows as tables, those of one Parquet schema or of none together, in their order."""
    for schema, group in itertools.groupby(
        rows, lambda row: None if row.origin is None else row.origin.schema
    ):
        yield _table(list(group), types, schema)


def _table(
    rows: Sequence[ExportedRow], types: Mapping[str, pa.DataType], schema: pa.Schema | None
) -> pa.Table:
    # Of columns that share a name, the first.
    before = {} if schema is None else {one.name: one for one in reversed(list(schema))}
    keys = row_keys(list(before))
    original = _original([row.origin for row in rows if row.origin is not None], before)
    fields, columns = [], []
    for name in dict.fromkeys(name for row in rows for name in row.values):
        values = [row.values.get(name) for row in rows]
        field = before.get(name)
        if field is not None:
            is_new = [
                row.origin is None or value is not row.origin.get(keys[name])
                for row, value in zip(rows, values, strict=True)
            ]
            column = _replaced(original[name], values, is_new, types.get(name))
        else:
            theirs = before.get(name.removeprefix("original_"))
            kind = types.get(name, None if theirs is None else theirs.type)
            column = column_of(values, kind)
        if field is None or column.type != field.type:
            field = pa.field(name, column.type)
        fields.append(field.with_nullable(field.nullable or column.null_count > 0))
        columns.append(column)
    metadata = dict((schema.metadata if schema is not None else None) or {})
    made = pa.schema(fields)
    return pa.table(columns, made.with_metadata(_with_images(metadata, made)))


def _original(
    origins: Sequence[ParquetRow], fields: Mapping[str, pa.Field]
) -> dict[str, pa.ChunkedArray]:
    """The columns of rows as their Parquet file has them; what was not read of them is null.

    Rows are slices of their batches: taking them one by one has no kernel for every type.
    """
    chunks: dict[str, list[pa.Array]] = {name: [] for name in fields}
    for _, group in itertools.groupby(origins, lambda origin: id(origin.batch)):
        alike = list(group)
        batch = alike[0].batch
        there = dict(zip(batch.schema.names[::-1], batch.columns[::-1], strict=True))
        for name, field in fields.items():
            column = there.get(name)
            if column is None:
                column = pa.nulls(len(batch), field.type)
            elif column.type != field.type:  # texts read as dictionaries
                column = pa.array(column.to_pylist(), field.type)
            chunks[name] += [column.slice(*run) for run in _runs([one.place for one in alike])]
    return {name: pa.chunked_array(chunks[name], field.type) for name, field in fields.items()}


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and length of each run of places that follow one another."""
    for _, run in itertools.groupby(enumerate(places), lambda one: one[1] - one[0]):
        (_, begin), *others = run
        yield begin, 1 + len(others)


def _replaced(
    column: pa.ChunkedArray, values: list[Any], is_new: list[bool], kind: pa.DataType | None
) -> pa.Array | pa.ChunkedArray:
    """A column with new values in its type, if they fit; else all of them as one of their own."""
    if not any(is_new):
        return column
    if kind is None:
        try:
            new = pa.array([*itertools.compress(values, is_new)], column.type)
        except _UNFIT:
            pass
        else:
            chunks: list[pa.Array] = []
            begin = taken = 0
            for one, run in itertools.groupby(is_new):
                count = len(list(run))
                chunks += [new.slice(taken, count)] if one else column.slice(begin, count).chunks
                begin, taken = begin + count, taken + count * one
            return pa.chunked_array(chunks, column.type)
    return column_of(values, kind)


def column_of(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """Values as a column of the type, if they fit; else of one that they have, or as text."""
    is_image = any(isinstance(one, dict) and one.keys() == {"bytes", "path"} for one in values)
    for one in (kind, _IMAGE_TYPE if is_image else None, None):
        try:
            column = pa.array(values, one)
        except _UNFIT:
            continue
        if _is_writable(column.type):
            return column
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


@functools.cache
def _is_writable(kind: pa.DataType) -> bool:
    """Whether Parquet holds a type: no struct without fields, no interval of DuckDB's."""
    try:
        pq.ParquetWriter(io.BytesIO(), pa.schema([("column", kind)])).close()
    except pa.ArrowException:
        return False
    return True


def _text(value: object) -> str:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return json_text(value)


def join_parquet(files: Sequence[Path | UPath], out: Path, schema: pa.Schema | None = None) -> None:
    """Write the rows of Parquet files, in their order, to one: `unified`, or under a `schema`."""
    schema = schema or unified(map(schema_of, files))
    with pq.ParquetWriter(out, schema) as writer:
        for file in files:
            with stores.open_parquet(stores.location(str(file))) as opened:
                for group in range(opened.num_row_groups):
                    table = conformed(opened.read_row_group(group), schema)
                    writer.write_table(table, row_group_size=max(len(table), 1))


def schema_of(file: Path | UPath) -> pa.Schema:
    """The schema of a Parquet file, local or in a store."""
    with stores.open_parquet(stores.location(str(file))) as opened:
        return opened.schema_arrow


def unified(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """One schema for all: every column, of a type that holds its values, or text."""
    every = list(schemas)
    fields: dict[str, pa.Field] = {}
    metadata: dict[bytes, bytes] = {}
    for schema in every:
        for one in schema:
            field = fields.setdefault(one.name, one)
            fields[one.name] = field.with_type(_common(field.type, one.type))
        metadata = {**(schema.metadata or {}), **metadata}
    made = pa.schema(
        field.with_nullable(any(name not in s.names or s.field(name).nullable for s in every))
        for name, field in fields.items()
    )
    return made.with_metadata(_with_images(metadata, made))


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the columns and types of a schema; columns that it lacks are null."""
    columns = []
    for one in schema:
        if one.name not in table.schema.names:
            columns.append(pa.nulls(len(table), one.type))
            continue
        column = table.column(one.name)
        if column.type != one.type and pa.types.is_string(one.type):
            values = (None if value is None else _text(value) for value in column.to_pylist())
            column = pa.array(list(values), pa.string())
        # Whole numbers beside fractions become these, beyond 2**53 with the loss that JSON allows.
        columns.append(column if column.type == one.type else column.cast(one.type, safe=False))
    return pa.table(columns, schema)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    if pa.types.is_nested(one) or pa.types.is_nested(other):
        return pa.string()
    try:
        both = [pa.schema([("both", one)]), pa.schema([("both", other)])]
        return pa.unify_schemas(both, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return pa.string()


def _with_images(metadata: Mapping[bytes, bytes], schema: pa.Schema) -> dict[bytes, bytes]:
    """The metadata of a schema, with Hugging Face's note of which columns are images."""
    images = {one.name: {"_type": "Image"} for one in schema if one.type == _IMAGE_TYPE}
    try:
        noted = json.loads(metadata.get(_HUGGING_FACE, b"{}"))
        features = noted.setdefault("info", {}).get("features") or {}
        noted["info"]["features"] = {
            **{name: what for name, what in features.items() if name in schema.names},
            **{name: what for name, what in images.items() if name not in features},
        }
    except (ValueError, AttributeError, TypeError):
        return dict(metadata)
    kept = {name: value for name, value in metadata.items() if name != _HUGGING_FACE}
    if noted["info"]["features"]:
        kept[_HUGGING_FACE] = json.dumps(noted).encode()
    return kept
