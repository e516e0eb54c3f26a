"""Write exported rows as Parquet: rows from Parquet keep their types, others get fitting ones."""

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

from ncclean.base import stores
from ncclean.base.json_values import json_text
from ncclean.data.images.arrow_rows import ParquetRow
from ncclean.data.images.text_rows import row_keys
from ncclean.exporting.rows import ExportedRow

_IMAGE_TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
_HUGGING_FACE = b"huggingface"
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def tables_of(rows: Sequence[ExportedRow], types: Mapping[str, pa.DataType]) -> Iterator[pa.Table]:
    """Yield exported rows as tables, in order; rows with the same Parquet schema share one."""
    for schema, group in itertools.groupby(
        rows, lambda row: None if row.origin is None else row.origin.schema
    ):
        yield _table(list(group), types, schema)


def _table(
    rows: Sequence[ExportedRow], types: Mapping[str, pa.DataType], schema: pa.Schema | None
) -> pa.Table:
    # Of columns that share a name, take the first.
    before = {} if schema is None else {one.name: one for one in reversed(list(schema))}
    keys = row_keys(list(before))
    original = _original([row.origin for row in rows if row.origin is not None], before)
    fields, columns = [], []
    for name in dict.fromkeys(name for row in rows for name in row.values):
        field = before.get(name)
        column = original.get(name)
        if column is None or any(row.is_new(name, keys[name]) for row in rows):
            theirs = field or before.get(name.removeprefix("original_"))
            kind = types.get(name, None if theirs is None else theirs.type)
            column = column_of([row.values.get(name) for row in rows], kind)
        elif not _is_writable(column.type):
            column = column_of(column.to_pylist(), None)
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
    """Return the columns of rows as in their Parquet file; unread values are null.

    Slices rows from their batches: taking them one by one has no kernel for every type.
    """
    chunks: dict[str, list[pa.Array]] = {name: [] for name in fields}
    for _, group in itertools.groupby(origins, lambda origin: id(origin.batch)):
        alike = list(group)
        batch = alike[0].batch
        by_name = dict(zip(batch.schema.names[::-1], batch.columns[::-1], strict=True))
        for name, field in fields.items():
            column = by_name.get(name)
            if column is None:
                column = pa.nulls(len(batch), field.type)
            elif column.type != field.type:  # texts read as dictionaries
                column = pa.array(column.to_pylist(), field.type)
            chunks[name] += [column.slice(*run) for run in _runs([one.place for one in alike])]
    return {name: pa.chunked_array(chunks[name], field.type) for name, field in fields.items()}


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and length of each run of consecutive positions."""
    for _, run in itertools.groupby(enumerate(places), lambda one: one[1] - one[0]):
        (_, begin), *others = run
        yield begin, 1 + len(others)


def column_of(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """Return values as an Arrow array of a type if they fit; else of their own type, or as text."""
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
    """Check whether Parquet supports a type: no struct without fields, no DuckDB interval."""
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
    """Join the rows of Parquet files, in order, in one file.

    The schema is that of `unified` by default.
    """
    schema = schema or unified(map(schema_of, files))
    with pq.ParquetWriter(out, schema) as writer:
        for file in files:
            with stores.open_parquet(stores.location(str(file))) as opened:
                for group in range(opened.num_row_groups):
                    table = conformed(opened.read_row_group(group), schema)
                    writer.write_table(table, row_group_size=max(len(table), 1))


def schema_of(file: Path | UPath) -> pa.Schema:
    """Return the schema of a Parquet file, local or in a store."""
    with stores.open_parquet(stores.location(str(file))) as opened:
        return opened.schema_arrow


def unified(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return one schema for several: every column, with a type that holds its values, or text."""
    all_schemas = list(schemas)
    fields: dict[str, pa.Field] = {}
    metadata: dict[bytes, bytes] = {}
    for schema in all_schemas:
        for one in schema:
            field = fields.setdefault(one.name, one)
            fields[one.name] = field.with_type(_common(field.type, one.type))
        metadata = {**(schema.metadata or {}), **metadata}
    made = pa.schema(
        field.with_nullable(any(name not in s.names or s.field(name).nullable for s in all_schemas))
        for name, field in fields.items()
    )
    return made.with_metadata(_with_images(metadata, made))


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns and types of a schema; missing columns are null."""
    columns = []
    for one in schema:
        if one.name not in table.schema.names:
            columns.append(pa.nulls(len(table), one.type))
            continue
        column = table.column(one.name)
        if column.type != one.type and pa.types.is_string(one.type):
            values = (None if value is None else _text(value) for value in column.to_pylist())
            column = pa.array(list(values), pa.string())
        # Integers beside fractions become fractions, with the loss beyond 2**53 that JSON allows.
        columns.append(column if column.type == one.type else column.cast(one.type, safe=False))
    return pa.table(columns, schema)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    both = [pa.schema([("both", kind)]) for kind in (one, other)]
    try:
        common = pa.unify_schemas(both, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return pa.string()
    is_changed = common not in (one, other) and pa.types.is_nested(common)
    return pa.string() if is_changed else common


def _with_images(metadata: Mapping[bytes, bytes], schema: pa.Schema) -> dict[bytes, bytes]:
    """Return a schema's metadata with Hugging Face's note of which columns are images."""
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
    written = {name: value for name, value in metadata.items() if name != _HUGGING_FACE}
    if noted["info"]["features"]:
        written[_HUGGING_FACE] = json.dumps(noted).encode()
    return written
