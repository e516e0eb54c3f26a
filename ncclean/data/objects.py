"""Pairs that Python holds, as a table of images: for `ncclean.score(dataset, ...)` and the like.

A `datasets.Dataset`, a data frame of pandas or polars, any other Arrow table, a list of (image,
caption) or of dicts. Images are bytes, paths, Pillow's or Hugging Face's `{"bytes", "path"}`. All
commands read files, on several machines and again tomorrow, so the pairs are written once.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from ncclean.base.scratch import scratch_folder
from ncclean.data.images.columns import image_column
from ncclean.errors import InputError, one_line

_ROWS = 256  # in memory at a time, and of a row group
_PIECE = 1 << 20  # bytes
_PAIR = 2
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def is_paths(value: object) -> bool:
    """Whether a source is a path or URL, or a list of these, and no object that holds pairs."""
    values = value if isinstance(value, list | tuple) else [value]
    return all(one is None or isinstance(one, str | os.PathLike) for one in values)


def write_pairs(
    source: object, image_root: str | None = None, image_key: str | None = None
) -> tuple[str, int]:
    """Write pairs to a Parquet file in the temporary folder; its path and number of rows.

    It is named by its content, so that the same pairs are the same file. Paths of images start
    from `image_root` or the current folder. Raises `InputError` for an object that holds no pairs.
    """
    with scratch_folder() as folder:
        aside = folder / "pairs.parquet"
        try:
            count = _write(_rows(source), aside, image_root or "", image_key)
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


def _write(rows: Iterator[dict[str, Any]], path: Path, root: str, image_key: str | None) -> int:
    """Write rows to a Parquet file, with the types of the first ones; return their number."""
    embedded = (_with_image(row, root, image_key) for row in rows)
    chunks = iter(lambda: list(itertools.islice(embedded, _ROWS)), [])
    first = next(chunks, [])
    # Arrow takes the names of the first row alone, and leaves out what others have besides.
    names = dict.fromkeys(name for row in first for name in row)
    inferred = pa.table({name: pa.array([row.get(name) for row in first]) for name in names})
    schema = pa.schema(map(_typed, inferred.schema))
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        for chunk in itertools.chain([first], chunks):
            if late := {name for row in chunk for name in row} - names.keys():
                raise InputError(
                    f"{', '.join(sorted(late))} is in none of the first {_ROWS:,} pairs, whose "
                    "columns the table has: give it to one of them, None will do"
                )
            writer.write_table(pa.Table.from_pylist(chunk, schema))
            count += len(chunk)
    return count


def _typed(field: pa.Field) -> pa.Field:
    """The field with a type for what the first rows lack."""
    if pa.types.is_struct(field.type) and {"bytes", "path"} <= {one.name for one in field.type}:
        return field.with_type(_IMAGE)
    return field.with_type(pa.string()) if pa.types.is_null(field.type) else field


def _rows(source: Any) -> Iterator[dict[str, Any]]:
    """The rows of an object as dicts. Raises `InputError` for one that has none."""
    if isinstance(source, Mapping):
        names = ", ".join(map(str, source))
        raise InputError(f"the source is a dict of {names}: give one of them, or a list of pairs")
    if hasattr(source, "with_format") and hasattr(source, "column_names"):  # datasets.Dataset
        for table in source.with_format("arrow").iter(batch_size=_ROWS):
            yield from table.to_pylist()
    elif hasattr(source, "iloc"):  # pandas: its Arrow stream takes no images of Pillow
        for start in range(0, len(source), _ROWS):
            yield from source.iloc[start : start + _ROWS].to_dict("records")
    elif hasattr(source, "iter_rows"):  # polars
        yield from source.iter_rows(named=True)
    elif hasattr(source, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(source):
            yield from batch.to_pylist()
    else:
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


def _with_image(row: dict[str, Any], root: str, image_key: str | None) -> dict[str, Any]:
    """The row with the bytes of its image, in place of what Pillow holds or a path names."""
    row = {name: _plain(value) for name, value in row.items()}
    column, image, path = image_column({name.lower(): v for name, v in row.items()}, image_key)
    if image is None and path is not None:
        with contextlib.suppress(OSError):  # it is one without an image, as in a table
            image = Path(root, path).read_bytes()
    if column is None:
        return row
    written = next((name for name in row if name.lower() == column), column)
    name = "image" if isinstance(row[written], str) else written
    return row | {name: {"bytes": image, "path": path}}


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, Image.Image):
        return None if value != value else value  # NaN, of pandas
    encoded = io.BytesIO()
    picture = value if value.mode in ("RGB", "L", "P", "RGBA", "LA", "1") else value.convert("RGB")
    picture.save(encoded, "PNG", compress_level=1, exif=value.getexif())
    return encoded.getvalue()
