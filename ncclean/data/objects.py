"""Write pairs held in Python as a table of images, for `ncclean.score(dataset, ...)` and others.

The pairs may be a `datasets.Dataset`, a pandas or polars data frame, any other Arrow table, a list
of (image, caption) or of dicts. Images are bytes, paths, Pillow images or Hugging Face's `{"bytes",
"path"}`. All commands read files, on several machines and again tomorrow, so the pairs are written
once.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from ncclean.base.scratch import scratch_folder
from ncclean.data.images.columns import image_column
from ncclean.errors import InputError, one_line

_ROWS = 256  # rows in memory, and per row group
_PIECE = 1 << 20  # bytes
_PAIR = 2
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def is_paths(value: object) -> bool:
    """Check whether a source is a path or URL, or a list of these, not an object with pairs."""
    values = value if isinstance(value, list | tuple) else [value]
    return all(one is None or isinstance(one, str | os.PathLike) for one in values)


def write_pairs(
    source: object, image_root: str | None = None, image_key: str | None = None
) -> tuple[str, int]:
    """Write pairs to a Parquet file in the temporary folder; return its path and number of rows.

    The file is named by its content, so equal pairs share a file. Image paths are relative to
    `image_root` or the current folder. Raises `InputError` for an object that holds no pairs.
    """
    with scratch_folder() as folder:
        aside = folder / "pairs.parquet"
        try:
            tables = (_with_images(one, image_root or "", image_key) for one in _tables(source))
            count = _write(tables, aside)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(
                f"the pairs cannot be written as a table: {one_line(error)}"
            ) from error
        if not count:
            raise InputError("the source holds no pairs")
        digest = hashlib.blake2b(digest_size=8)
        with aside.open("rb") as file:
            for piece in iter(lambda: file.read(_PIECE), b""):
                digest.update(piece)
        target = folder.with_name(f"ncclean-pairs-{digest.hexdigest()}")
        target.mkdir(mode=0o700, exist_ok=True)
        if target.lstat().st_uid != os.getuid():  # nor a link that somebody left there
            raise InputError(f"{target} is another user's: set TMPDIR to a folder of your own")
        if not (target / aside.name).exists():
            aside.rename(target / aside.name)
    return str(target / aside.name), count


def _write(tables: Iterator[pa.Table], path: Path) -> int:
    """Write tables to a Parquet file, with types that hold all of them; return the number of rows.

    Consecutive tables of one schema form a piece, until the last table has been seen.
    """
    schemas: list[pa.Schema] = []
    pieces: list[Path] = []
    count = 0
    with contextlib.ExitStack() as stack:
        for table in tables:
            if not schemas or table.schema != schemas[-1]:
                stack.close()
                schemas.append(table.schema)
                pieces.append(path.with_suffix(f".{len(pieces)}"))
                writer = stack.enter_context(pq.ParquetWriter(pieces[-1], table.schema))
            writer.write_table(table)
            count += len(table)
    if not count:
        return 0
    merged = pa.unify_schemas(schemas, promote_options="permissive")
    schema = pa.schema([_stored(field) for field in merged], schemas[0].metadata)
    if len(pieces) == 1 and schema == schemas[0]:
        pieces[0].rename(path)
        return count
    with pq.ParquetWriter(path, schema) as writer:
        for piece in pieces:
            for batch in pq.ParquetFile(piece).iter_batches(_ROWS):
                by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
                columns = [by_name.get(name, pa.nulls(len(batch))) for name in schema.names]
                writer.write_table(pa.table(columns, schema.names).cast(schema))
    return count


def _stored(field: pa.Field) -> pa.Field:
    """Return the field with a type that every Parquet reader supports; text if unknown."""
    if pa.types.is_null(field.type) or field.type == pa.string_view():
        return field.with_type(pa.string())
    return field.with_type(pa.binary()) if field.type == pa.binary_view() else field


def _tables(source: Any) -> Iterator[pa.Table]:
    """Yield the rows of an object in pieces, with the types that it gives them.

    Raises `InputError` for an object without rows.
    """
    if isinstance(source, Mapping):
        names = ", ".join(map(str, source))
        raise InputError(f"the source is a dict of {names}: give one of them, or a list of pairs")
    if hasattr(source, "with_format") and hasattr(source, "column_names"):  # datasets.Dataset
        features = getattr(source, "features", None)
        metadata = features.arrow_schema.metadata if features is not None else None
        for table in source.with_format("arrow").iter(batch_size=_ROWS):
            yield table.replace_schema_metadata(metadata)
    elif hasattr(source, "iloc") and hasattr(source, "columns"):
        # pandas: its Arrow stream rejects Pillow images
        twice = source.columns[source.columns.duplicated()]
        if len(twice):
            raise InputError(f"the data frame has several columns called {twice[0]}")
        named = [name for name in source.index.names if name not in (None, *source.columns)]
        source = source.reset_index(level=named) if named else source
        for start in range(0, len(source), _ROWS):
            rows = source.iloc[start : start + _ROWS]
            plain = {name: rows[name].map(_plain) for name in rows if rows[name].dtype == object}
            table = pa.Table.from_pandas(rows.assign(**plain), preserve_index=False)
            yield table.replace_schema_metadata(None)
    elif hasattr(source, "__arrow_c_stream__") and not _has_objects(source):
        for batch in pa.RecordBatchReader.from_stream(source):
            for start in range(0, len(batch), _ROWS):
                yield pa.Table.from_batches([batch.slice(start, _ROWS)])
    else:
        pairs = _pairs(source)
        while chunk := list(itertools.islice(pairs, _ROWS)):
            # Arrow takes only the first row's names, and drops other rows' additional fields.
            columns = dict.fromkeys(name for row in chunk for name in row)
            yield pa.table(
                {name: _array(name, [one.get(name) for one in chunk]) for name in columns}
            )


def _has_objects(source: Any) -> bool:
    """Check whether a polars data frame has values unknown to Arrow, such as Pillow images."""
    return "Object" in map(str, getattr(source, "dtypes", ()))


def _pairs(source: Any) -> Iterator[dict[str, Any]]:
    if hasattr(source, "iter_rows"):  # polars
        yield from source.iter_rows(named=True)
        return
    for pair in source if isinstance(source, Iterable) else [source]:
        if isinstance(pair, Mapping):
            yield dict(pair)
        elif isinstance(pair, tuple | list) and len(pair) == _PAIR:
            yield {"image": pair[0], "text": pair[1]}
        else:
            raise InputError(
                "a source is a path, a list of (image, caption), a data frame or a "
                f"datasets.Dataset; got {type(pair).__name__}"
            )


def _array(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(map(_plain, values), from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"the values of {name} are no column: {one_line(error)}") from error


def _with_images(table: pa.Table, root: str, image_key: str | None) -> pa.Table:
    """Replace image paths in the table by the files' bytes."""
    rows = table.to_pylist()
    images: defaultdict[str, list[Any]] = defaultdict(lambda: [None] * len(rows))
    for number, row in enumerate(rows):
        column, image, path = image_column({k.lower(): v for k, v in row.items()}, image_key)
        if image is None and path is not None:
            with contextlib.suppress(OSError):  # becomes a row without an image, as in a table
                image = Path(root, path).read_bytes()
        if column is not None:
            written = next((name for name in row if name.lower() == column), column)
            name = "image" if isinstance(row[written], str) else written
            images[name][number] = {"bytes": image, "path": path}
    for target, values in images.items():
        # If another column has a row's image, this column's value stays.
        pairs = zip(values, rows, strict=True)
        kept = [_as_image(row.get(target)) if one is None else one for one, row in pairs]
        field, array = pa.field(target, _IMAGE), pa.array(kept, _IMAGE)
        if target in table.column_names:
            table = table.set_column(table.column_names.index(target), field, array)
        else:
            table = table.append_column(field, array)
    return table


def _as_image(value: Any) -> dict[str, Any] | None:
    if isinstance(value, bytes):
        return {"bytes": value, "path": None}
    return value if isinstance(value, dict) else None


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if getattr(value, "ndim", 1) > 1:
        raise InputError(
            "images are Pillow's, bytes or paths: PIL.Image.fromarray makes one of an array"
        )
    if getattr(value, "ndim", 0) == 1 and not len(value):
        return []  # an empty array has a type that its list lacks
    if not isinstance(value, Image.Image):
        return value
    encoded = io.BytesIO()
    picture = value if value.mode in ("RGB", "L", "P", "RGBA", "LA", "1") else value.convert("RGB")
    picture.save(encoded, "PNG", compress_level=1, exif=value.getexif())
    return encoded.getvalue()
