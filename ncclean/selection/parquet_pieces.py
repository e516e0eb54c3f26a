"""Exported rows as Parquet: pieces of one schema each, joined under one that holds them all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import stores
from ncclean.data.images.columns import PATH_COLUMNS
from ncclean.json_values import json_text
from ncclean.selection.exported_rows import ExportedRow

_GROUP_BYTES = 64 << 20  # of images in a row group: a viewer reads one whole
_GROUP_ROWS = 10_000
_IMAGE_TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
_HUGGING_FACE = b"huggingface"


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
        if self._rows:
            self._flush()
        if self._writer is not None:
            self._writer.close()
        return self.files

    def _flush(self) -> None:
        for table in table_of(self._rows, self._types):
            if self._writer is None or not self._writer.schema.equals(table.schema, True):
                if self._writer is not None:
                    self._writer.close()
                self.files.append(self._folder / f"{len(self.files):05d}.parquet")
                self._writer = pq.ParquetWriter(self.files[-1], table.schema)
            self._writer.write_table(table, row_group_size=len(table))
        self._rows, self._bytes = [], 0


def table_of(rows: Sequence[ExportedRow], types: Mapping[str, pa.DataType]) -> Iterator[pa.Table]:
    """The rows as tables, those of one Parquet schema or of none together, in their order."""
    by_schema = itertools.groupby(rows, lambda row: row.origin and row.origin.schema)
    for schema, group in by_schema:
        alike = list(group)
        table = _original(alike, schema) if schema is not None else None
        names = list(dict.fromkeys(name for row in alike for name in row.values))
        columns = {}
        for name in names:
            here = table.column(name) if table is not None and name in table.schema.names else None
            if here is not None and not any(name in row.changed for row in alike):
                columns[name] = here
                continue
            values = [row.values.get(name) for row in alike]
            kind = types.get(name, None if here is None else here.type)
            columns[name] = _column(values, kind)
        metadata = dict((schema.metadata if schema is not None else None) or {})
        made = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
        yield pa.table(columns, made.with_metadata(_with_images(metadata, made)))


def _original(rows: Sequence[ExportedRow], schema: pa.Schema) -> pa.Table:
    """The rows as the Parquet file has them, in its types; what was not read of them is null.

    Of columns that share a name, the first is there.
    """
    schema = pa.schema(
        [one for n, one in enumerate(schema) if schema.names.index(one.name) == n], schema.metadata
    )
    pieces = []
    origins = [row.origin for row in rows if row.origin is not None]
    for _, group in itertools.groupby(origins, lambda origin: id(origin.batch)):
        alike = list(group)
        batch = alike[0].batch
        taken = batch.take(pa.array([origin.place for origin in alike]))
        named = zip(taken.schema.names[::-1], taken.columns[::-1], strict=True)
        there = dict(named)
        columns = [
            there[one.name].cast(one.type) if one.name in there else pa.nulls(len(alike), one.type)
            for one in schema
        ]
        pieces.append(pa.table(columns, schema))
    return pa.concat_tables(pieces)


def _column(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """Values as a column of the type, if they fit; else of one that they have, or as text."""
    is_image = any(isinstance(one, dict) and one.keys() == {"bytes", "path"} for one in values)
    for one in (kind, _IMAGE_TYPE if is_image else None, None):
        try:
            column = pa.array(values, one)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
        if not _has_empty_struct(column.type):
            return column
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _has_empty_struct(kind: pa.DataType) -> bool:
    """Whether Parquet cannot write a type."""
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return True
    inner = [kind.field(n).type for n in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return any(map(_has_empty_struct, inner))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return json_text(value)


def join_parquet(
    files: Sequence[Path | UPath],
    out: Path,
    schema: pa.Schema | None = None,
    left_out: Sequence[Container[str]] = (),
) -> None:
    """Write the rows of Parquet files, in their order, to one: `unified`, or under a `schema`.

    `left_out` has, for each file, paths of images whose rows are not written.
    """
    schema = schema or unified(map(schema_of, files))
    with pq.ParquetWriter(out, schema) as writer:
        for file, paths in itertools.zip_longest(files, left_out, fillvalue=()):
            with stores.open_parquet(stores.location(str(file))) as opened:
                for group in range(opened.num_row_groups):
                    table = conformed(opened.read_row_group(group), schema)
                    if paths:
                        names = table.column(PATH_COLUMNS[0]).to_pylist()
                        table = table.filter(pa.array([name not in paths for name in names]))
                    writer.write_table(table, row_group_size=max(len(table), 1))


def schema_of(file: Path | UPath) -> pa.Schema:
    """The schema of a Parquet file, local or in a store."""
    with stores.open_parquet(stores.location(str(file))) as opened:
        return opened.schema_arrow


def unified(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """One schema for all: every column, of a type that holds its values, or text."""
    fields: dict[str, pa.DataType] = {}
    metadata: dict[bytes, bytes] = {}
    for schema in schemas:
        for one in schema:
            fields[one.name] = _common(fields.get(one.name, one.type), one.type)
        metadata = {**(schema.metadata or {}), **metadata}
    made = pa.schema([pa.field(name, kind) for name, kind in fields.items()])
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
        columns.append(column.cast(one.type, safe=False))
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
