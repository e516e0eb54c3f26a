"""Read small tables from people, whole and within limits: decisions, answers, causes, results.

All forms have one reader. Parquet is decoded in a separate process, with limits of memory and time:
a few of its bytes may stand for gigabytes, and broken ones may end the process.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from ncclean.base.isolated import isolated, limit_memory
from ncclean.base.text_files import parse_json, read_bytes, to_text
from ncclean.errors import InputError, one_line

LINES = (".jsonl", ".ndjson")
LONGEST_FIELD = 1 << 20  # characters; an unclosed quote would turn the rest into a field
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LARGEST_FILE = 128 << 20  # of Parquet; texts have a separate limit
_MOST_ROWS = 2_000_000  # of some hundred bytes each as Python objects
_LARGEST_VALUES = 256 << 20
_MEMORY = 1 << 30
_SECONDS = 60
_BATCH_ROWS = 1000


class SmallTable(NamedTuple):
    """Rows, and the `facts` about them: the metadata of a Parquet file, or all of a JSON object."""

    rows: Iterable[Any]
    facts: dict[str, Any]


def read_rows(
    path: str, needed: Sequence[str], optional: Sequence[str] = (), *, what: str
) -> SmallTable:
    """Read the rows of a Parquet, CSV, TSV, JSON or JSON lines file, local or in a store.

    Tables must have the `needed` columns of `what` they are supposed to hold; columns other than
    these and the `optional` ones may be omitted. JSON is returned as written: rows may be of any
    kind, and an object is one row. Raises `InputError` for any other file, and for one that is too
    large.
    """
    data, ending = read_bytes(path, _LARGEST_FILE), os.path.splitext(path)[1].lower()
    if ending == ".parquet" or data.startswith(b"PAR1"):
        table = _decoded(data, path, needed, optional, what)
        metadata = table.schema.metadata or {}
        return SmallTable(
            (row for batch in table.to_batches() for row in _python_rows(batch, path)),
            {key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
             for key, value in metadata.items()},
        )  # fmt: skip
    text = to_text(data, path)
    if ending in _DELIMITERS:
        return SmallTable(_csv_rows(text, path, _DELIMITERS[ending], needed, what), {})
    value = _json(text, path, is_lines=ending in LINES)
    if isinstance(value, list):
        return SmallTable(value, {})
    if isinstance(value, dict):
        return SmallTable([value], value)
    raise InputError(f"{path} has no {what}: it is neither a list nor an object of JSON")


def read_parquet(path: str, needed: Sequence[str], *, what: str) -> pa.Table:
    """Read the `needed` columns of a Parquet file. Raises `InputError` as `read_rows` does."""
    return _decoded(read_bytes(path, _LARGEST_FILE), path, needed, (), what)


def _decoded(
    data: bytes, path: str, needed: Sequence[str], optional: Sequence[str], what: str
) -> pa.Table:
    """Decode Parquet in another process."""
    command = [*isolated(__name__), json.dumps([*needed, *optional])]
    try:
        reader = subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise InputError(f"{path} cannot be read within {_SECONDS} s") from None
    if reader.returncode:
        why = reader.stderr.decode("utf-8", "replace").strip()
        if reader.returncode != 1:
            why = f"its reader was ended by signal {-reader.returncode}"
        raise InputError(f"{path} cannot be read: {why}")
    table = pa.ipc.open_stream(reader.stdout).read_all()
    missing = [name for name in needed if name not in table.column_names]
    if missing:
        raise InputError(f"{path} has no {what}: it lacks {', '.join(missing)}")
    return table


def main() -> None:
    """Decode the Parquet file on standard input, and write the named columns as a stream.

    Ends with a sentence if that exceeds the limits.
    """
    limit_memory(_MEMORY)
    try:
        _decode(pa.BufferReader(sys.stdin.buffer.read()), json.loads(sys.argv[2]))
    except MemoryError:
        sys.exit(f"it takes more than {_MEMORY >> 20:,} MiB of memory")
    except (InputError, ValueError, OSError, NotImplementedError, pa.ArrowException) as error:
        sys.exit(one_line(error))


def _decode(source: pa.BufferReader, columns: Sequence[str]) -> None:
    with parquet.ParquetFile(source) as file:
        fields = [field for field in file.schema_arrow if field.name in columns]
        schema = pa.schema(fields, file.schema_arrow.metadata)
        announced, rows, size = file.metadata.num_rows, 0, 0
        if announced > _MOST_ROWS:
            raise InputError(f"it announces {announced:,} rows, at most {_MOST_ROWS:,} are read")
        with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:
            for batch in file.iter_batches(_BATCH_ROWS, columns=schema.names, use_threads=False):
                rows, size = rows + len(batch), size + batch.nbytes
                if rows > _MOST_ROWS or size > _LARGEST_VALUES:
                    raise InputError(f"it has more than {_LARGEST_VALUES >> 20:,} MiB of values")
                writer.write_batch(batch)
    if rows != announced:  # a wrong page header may lose rows without an Arrow error
        raise InputError(f"it has {rows:,} rows, {announced:,} were announced")


def _python_rows(batch: pa.RecordBatch, path: str) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except (ValueError, OverflowError) as error:  # an invalid text, or a time that Python lacks
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
    return rows


def _csv_rows(
    text: str, path: str, delimiter: str, needed: Sequence[str], what: str
) -> list[dict[str, Any]]:
    csv.field_size_limit(LONGEST_FIELD)  # of the process, whatever was read before
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path} has no {what}: it lacks {', '.join(missing)}")
        return list(reader)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}, cannot be read: {error}") from error


def _json(text: str, path: str, *, is_lines: bool) -> Any:
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        if not is_lines:
            return parse_json(text, path)
    except InputError:
        if len(lines) < 2:
            raise
    return [
        parse_json(line, f"{path} is neither JSON nor JSON lines: line {number}")
        for number, line in enumerate(lines, start=1)
    ]
