"""List the image files of an export, with their rows, before writing them.

The lists serve to remove what a killed run left, to find two images with one path, and to make the
table of all rows at the end.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.json_values import json_text
from ncclean.data.images.text_rows import SEPARATED
from ncclean.exporting.out_layout import PARQUET, OutLayout, Targets
from ncclean.exporting.parquet import conformed, tables_of, unified
from ncclean.exporting.rows import ExportedRow
from ncclean.storage.catalog import connect
from ncclean.storage.tables import listed

_PATTERN = "*_files-*.parquet"
_ROW = "row"
_SCHEMA = {
    "task": pa.int64(), "sample": pa.int64(), "table": pa.int64(), "file": pa.string(),
    "digest": pa.binary(),
}  # fmt: skip
# File systems that ignore letter case or accent encoding hold one file for both spellings.
_SAME_FILE = "lower(nfc_normalize(file))"

Entry = tuple[int, int, str, bytes]  # the task's sample, its table, its image, the image's digest


def digest_of(image: bytes) -> bytes:
    """Return the digest by which images with the same path are compared."""
    return hashlib.blake2b(image, digest_size=16).digest()


def list_path(targets: Targets, task: int, batch: int) -> UPath:
    """Return the path of the list of image files that a task wrote in one of its batches."""
    return targets.work / f"{targets.name(task)}_files-{batch:05d}{PARQUET}"


def write_list(
    targets: Targets,
    task: int,
    batch: int,
    rows: Sequence[tuple[Entry, ExportedRow]],
    types: Mapping[str, pa.DataType],
) -> None:
    """Write the list of a batch's image files, with their rows.

    A row is a struct if the table is Parquet, else JSON.
    """
    columns = [[task] * len(rows), *zip(*(entry for entry, _ in rows), strict=True)]
    arrays = [pa.array(one, kind) for one, kind in zip(columns, _SCHEMA.values(), strict=True)]
    fields = [pa.field(name, kind) for name, kind in _SCHEMA.items()]
    metadata = None
    if targets.layout.table.endswith(PARQUET):
        tables = list(tables_of([row for _, row in rows], types))
        schema = unified(table.schema for table in tables)
        table = pa.concat_tables(conformed(one, schema) for one in tables).combine_chunks()
        metadata = schema.metadata
        columns = [one.combine_chunks() for one in table.columns]
        arrays.append(pa.StructArray.from_arrays(columns, fields=list(schema)))
    else:
        arrays.append(pa.array([json_text(row.values) for _, row in rows], pa.string()))
    fields.append(pa.field(_ROW, arrays[-1].type))
    with published(list_path(targets, task, batch)) as aside:
        made = pa.table(arrays, pa.schema(fields, metadata))
        pq.write_table(made, aside, compression="zstd")


def lists_in(work: UPath) -> list[UPath]:
    """Return the paths of the lists of image files of all tasks."""
    return stores.ask("list", work, listed, work, _PATTERN)


def names_in(path: UPath, layout: OutLayout) -> Iterator[str]:
    """Yield the names of the image files in a list. Raises `InputError` if it cannot be read."""
    with contextlib.closing(connect([str(path)])) as connection:
        cursor = connection.execute(
            "SELECT DISTINCT file::VARCHAR FROM scores WHERE file IS NOT NULL"
        )
        while rows := cursor.fetchmany(10_000):
            for (name,) in rows:
                yield name
                if layout.beside:
                    yield caption_file(name)


def caption_file(image: str) -> str:
    """Return the path of the text file beside an image."""
    stem, dot, ending = image.rpartition(".")
    return f"{stem if dot and '/' not in ending else image}.txt"


def replaced_images(targets: Targets) -> Mapping[int, dict[str, int]]:
    """Return the images that were overwritten by another task's image with the same path.

    They are paths by task, with the number of samples. A task sees only its own files; the file
    finally at the path tells whose image it is.
    """
    replaced: dict[int, dict[str, int]] = defaultdict(dict)
    lists = lists_in(targets.work)
    if not lists:
        return replaced
    with contextlib.closing(connect(map(str, lists))) as connection:
        cursor = connection.execute(
            f"""WITH shared AS (SELECT {_SAME_FILE} AS place FROM scores WHERE digest IS NOT NULL
                GROUP BY place HAVING count(DISTINCT digest) > 1)
            SELECT task, file, digest, count(DISTINCT sample) FROM scores
            WHERE digest IS NOT NULL AND {_SAME_FILE} IN (FROM shared)
            GROUP BY task, file, digest ORDER BY file, task"""
        )
        file, written = "", None
        while rows := cursor.fetchmany(10_000):
            for task, name, digest, count in rows:
                if name != file:
                    file, written = name, _digest_at(targets.out / name)
                if written not in (None, digest):
                    replaced[task][name] = count
    return replaced


def join_lists(
    targets: Targets,
    batches: Mapping[int, int],
    left_out: Mapping[int, Sequence[int]],
    replaced: Mapping[int, Mapping[str, int]],
    columns: Mapping[int, Sequence[str]],
) -> None:
    """Write the tables of an export of image files from all tasks' lists, unless already written.

    `batches` is the number of each task's lists. Samples that are `left_out` by number, and images
    that were `replaced`, have no row. `columns` are those of each text table.
    """
    if len(stores.present_files(targets.tables)) == len(targets.tables):
        return

    def lists() -> Iterator[pa.Table]:
        for task, count in batches.items():
            for batch in range(count):
                table = _read(list_path(targets, task, batch))
                samples, files = table["sample"].to_pylist(), table["file"].to_pylist()
                gone, others = set(left_out.get(task, ())), replaced.get(task, ())
                is_there = [
                    sample not in gone and file not in others
                    for sample, file in zip(samples, files, strict=True)
                ]
                yield _kept(table, is_there)

    if targets.layout.table.endswith(PARQUET):
        _join_typed(targets.tables[0], lists)
    else:
        _join_text(targets, lists(), columns)


def _join_typed(out: UPath, lists: Any) -> None:
    schema = unified(
        pa.schema(list(one.schema.field(_ROW).type), one.schema.metadata) for one in lists()
    )
    with published(out) as aside, pq.ParquetWriter(aside, schema) as writer:
        for table in lists():
            rows = pa.Table.from_batches(
                pa.RecordBatch.from_struct_array(chunk) for chunk in table[_ROW].chunks
            ) if table.num_rows else None  # fmt: skip
            if rows is not None:
                writer.write_table(conformed(rows, schema))


def _join_text(
    targets: Targets, lists: Iterator[pa.Table], columns: Mapping[int, Sequence[str]]
) -> None:
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(
                open(stack.enter_context(published(table)), "w", encoding="utf-8", newline="")
            )
            for table in targets.tables
        ]
        if targets.tables[0].suffix not in SEPARATED:
            for table in lists:
                for number, row in zip(
                    *(table[n].to_pylist() for n in ("table", _ROW)), strict=True
                ):
                    files[number].write(f"{row}\n")
            return
        writers = [
            csv.writer(_RowsOnLines(file), delimiter=one.separator)
            for file, one in zip(files, targets.layout.all_tables, strict=True)
        ]
        for number, writer in enumerate(writers):
            writer.writerow(columns.get(number, ()))
        for table in lists:
            for number, row in zip(*(table[n].to_pylist() for n in ("table", _ROW)), strict=True):
                values = json.loads(row)
                writers[number].writerow([_cell(values.get(name)) for name in columns[number]])


class _RowsOnLines:
    """Ends rows with a line feed; the csv writer's own option would not quote a carriage return."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, row: str) -> None:
        self._file.write(row.removesuffix("\r\n") + "\n")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kept(table: pa.Table, is_there: Sequence[bool]) -> pa.Table:
    """Return the rows to keep; a filter has no kernel for every type."""
    if all(is_there):
        return table
    rows = [table.slice(n, 1) for n, one in enumerate(is_there) if one]
    return pa.concat_tables(rows) if rows else table.slice(0, 0)


def _read(path: UPath) -> pa.Table:
    with stores.open_parquet(path) as file:
        return file.read()


def _digest_at(path: UPath) -> bytes | None:
    """Return the digest of a file; None if there is none."""
    try:
        return digest_of(stores.read_bytes(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
