"""Arrow files with a column of images or of their paths: Hugging Face's `save_to_disk`, Feather."""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ncclean.base import stores
from ncclean.base.regular_files import open_file
from ncclean.base.text_files import parse_json, read_text
from ncclean.data.images.arrow_rows import BATCH_BYTES, pieces, rows_of_batch
from ncclean.data.images.tables import TableLayout
from ncclean.data.images.text_rows import BrokenRow, Row, row_keys
from ncclean.data.layout import Cut, Facts, Source, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.parquet_table import vector_columns
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError, one_line
from ncclean.workers.call import contained_once

_MAGIC = b"ARROW1"  # starts files; streams, which Hugging Face writes, have none
_ROWS_AT_ONCE = 64
_BLOCK_BYTES = 8 << 20  # of an object store
_STATE = "state.json"  # of `save_to_disk`
_KEPT = re.compile(r"/cache-[^/]*$")  # by Hugging Face's datasets, of any folder
_SPLITS = {"train": "train", "validation": "val", "val": "val", "dev": "val", "test": "test"}


class ArrowImages(TableLayout):
    """Images in Arrow files and streams; a folder of splits stands for the folder of each."""

    name = "arrow"
    endings = files = (".arrow", ".feather")
    form = "parquet"
    has_splits = True

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        urls = super().sources(source, options)
        if not urls or source.is_file:
            return urls
        # Beside the data lie what `map` and `filter` kept, and files of earlier `save_to_disk`s.
        return _stated_files(source) or [one for one in urls if not _KEPT.search(one)]

    def split_of(self, url: str) -> str | None:
        return _SPLITS.get(posixpath.basename(posixpath.dirname(url)), "")

    def columns(self, url: str) -> pa.Schema:
        with _opened(url) as (schema, _):
            return schema

    def written_names(self, shard: ShardRef) -> dict[str, str]:
        return {key: name for name, key in row_keys(self.columns(shard.url).names).items()}

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        cuts: list[Cut] = []
        begin = end = 0
        for count in contained_once(batch_rows, file.url):
            end += count
            if end - begin >= self.unit_rows:
                cuts.append(Cut(begin, end))
                begin = end
        return [*cuts, Cut(begin, end)] if end > begin else cuts

    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        first, last = shard.rows or (0, None)
        done = first
        try:
            schema = self.columns(shard.url)
            vectors = vector_columns(schema)
            keys = {n: key for n, key in row_keys(schema.names).items() if n not in vectors}
            for piece in contained_once(read_pieces, shard.url, first, last):
                for row in rows_of_batch(piece, keys, schema if whole else None):
                    done += 1
                    yield row
            if last is not None and done < last:
                raise ShardError(f"{done - first} rows, {last - first} were announced")
        except (ShardError, MemoryError) as error:
            failure = str(error) or "needs more memory than a reader may take"
            yield from (BrokenRow(failure) for _ in range((last or done) - done))
            raise ShardError(failure) from error


def _stated_files(source: Source) -> list[str]:
    """Return the data files named in a folder's `state.json`; none without one.

    Raises `InputError` if a file is missing.
    """
    if _STATE not in source.files:
        return []
    state = parse_json(read_text(path := source.below(_STATE)), path)
    entries = state.get("_data_files") if isinstance(state, dict) else None
    listed = entries if isinstance(entries, list) else []
    names = [str(one.get("filename")) for one in listed if isinstance(one, dict)]
    if missing := [name for name in names if name not in source.files]:
        raise InputError(f"{path} names {missing[0]}, which is not there")
    return [source.below(name) for name in names]


def batch_rows(url: str) -> Iterator[int]:
    """Yield the number of rows in each batch of an Arrow file, which must be unpacked for it."""
    with _opened(url) as (_, batches):
        for batch in batches:
            yield batch.num_rows


def read_pieces(url: str, first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Arrow file in pieces of bounded size."""
    batch_end = 0
    with _opened(url) as (_, batches):
        for batch in batches:
            batch_end, batch_start = batch_end + batch.num_rows, batch_end
            if last is not None and batch_start >= last:
                break
            for piece in _pieces(batch, first - batch_start, (last or batch_end) - batch_start):
                yield from pieces(piece, BATCH_BYTES)


def _pieces(batch: pa.RecordBatch, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Yield a range of rows of a batch in pieces, as each row may hold an image."""
    first, last = max(first, 0), min(last, batch.num_rows)
    if first < last:
        batch.validate(full=True)  # offsets that lead elsewhere would be followed
    for begin in range(first, last, _ROWS_AT_ONCE):
        yield batch.slice(begin, min(_ROWS_AT_ONCE, last - begin))


@contextlib.contextmanager
def _opened(url: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Return columns and batches of a file; opening or iterating may raise `ShardError`."""
    try:
        with _stream(url) as stream:
            is_stream = stream.read(len(_MAGIC)) != _MAGIC
            stream.seek(0)
            reader = (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(stream)
            numbers = () if is_stream else range(reader.num_record_batches)
            batches = iter(reader) if is_stream else map(reader.get_batch, numbers)
            yield reader.schema, batches
    except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
        raise ShardError(f"cannot be read as Arrow: {one_line(error)}") from error


def _stream(url: str) -> Any:
    if stores.is_url(url):
        return stores.open_binary(url, block_bytes=_BLOCK_BYTES, blocks=4)
    return open_file(url)
