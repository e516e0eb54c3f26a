"""Parquet files with a column of images, or of their paths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ncclean.base import stores
from ncclean.data.images.arrow_rows import BATCH_BYTES, is_text, longest_text, pieces, rows_of_batch
from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.tables import METADATA, PARQUET, TableLayout
from ncclean.data.images.text_rows import BrokenRow, LeftOut, Row, row_keys
from ncclean.data.layout import Cut, Facts, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.parquet_table import check_rows, table_rows, vector_columns
from ncclean.data.sample_groups import LARGEST_TEXT
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError, one_line
from ncclean.workers.call import contained_once
from ncclean.workers.worker import progress

_BATCH_ROWS = 64


class ParquetImages(TableLayout):
    """Images in Parquet tables; row groups are read individually."""

    name = "parquet"
    endings = files = (PARQUET,)
    form = "parquet"

    def below(self, layouts: Sequence[ImageLayout]) -> Sequence[ImageLayout]:
        return (self,)  # a repository's files are in split folders

    def is_unreadable(self, url: str) -> bool:
        """Check whether an unreadable table can only hold images, as an imagefolder's metadata.

        Other Parquet files may hold anything.
        """
        return url.rpartition("/")[2] in METADATA and super().is_unreadable(url)

    def columns(self, url: str) -> pa.Schema:
        try:
            with stores.open_parquet(stores.location(url)) as file:
                return file.schema_arrow
        except (OSError, pa.ArrowException) as error:
            raise ShardError(f"{url} cannot be read: {one_line(error)}") from error

    def written_names(self, shard: ShardRef) -> dict[str, str]:
        return {key: name for name, key in row_keys(self.columns(shard.url).names).items()}

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        groups, _ = table_rows(file.url)
        check_rows(sum(groups), facts.size)
        cuts: list[Cut] = []
        begin = end = 0
        for number, count in enumerate(groups):
            end += count
            if end - begin >= self.unit_rows or (number == len(groups) - 1 and end > begin):
                cuts.append(Cut(begin, end))
                begin = end
        return cuts

    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        first, last = shard.rows or (0, 1 << 62)
        failure = ""
        try:
            with stores.open_parquet(stores.location(shard.url)) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
                counts = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        except (OSError, pa.ArrowException, MemoryError) as error:
            failure = f"cannot be read: {one_line(error)}"
            if shard.rows is not None:
                yield from (BrokenRow(failure) for _ in range(last - first))
            raise ShardError(failure) from error
        check_rows(min(last, rows) - first, shard.size)
        vectors = vector_columns(schema)
        names = row_keys(schema.names)
        keys = {name: key for name, key in names.items() if name not in vectors}
        columns = [name for name in schema.names if whole or name not in vectors]
        end = 0
        for group, count in enumerate(counts):
            begin, end = end, end + count
            if end <= first or begin >= last:
                continue
            done = begin
            try:
                for batch, inflated in contained_once(read_group, shard.url, group, columns):
                    left_out = {keys[name]: what for name, what in inflated.items()}
                    for row in rows_of_batch(batch, keys, schema if whole else None, left_out):
                        done += 1
                        if done <= end:
                            yield row
                if done != end:  # pages have wrong headers
                    raise ValueError(f"{done - begin} rows, {end - begin} were announced")
            except (OSError, pa.ArrowException, ValueError, MemoryError, ShardError) as error:
                failure = failure or f"row group {group} cannot be read: {one_line(error)}"
                for _ in range(end - done):
                    yield BrokenRow(failure)
        if end != rows:
            failure = failure or f"{end} rows, {rows} were announced"
        if failure:
            raise ShardError(failure)


def read_group(
    url: str, group: int, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, dict[str, LeftOut]]]:
    """Read the rows of a Parquet row group in pieces; omitted columns have a reason.

    If memory does not suffice, rows are read one by one, without texts that do not fit.
    """
    done = 0
    try:
        for batch in _batches(url, group, columns, _BATCH_ROWS):
            for piece in pieces(batch, BATCH_BYTES):
                yield from _without_large_texts(piece, {})
                done += piece.num_rows
        return
    except MemoryError:
        too_large = {name: what for name in columns if (what := _why_too_large(url, group, name))}
    readable = [name for name in columns if name not in too_large]
    for number, batch in enumerate(_batches(url, group, readable, 1)):
        if number >= done:
            yield from _without_large_texts(batch, too_large)


def _without_large_texts(
    batch: pa.RecordBatch, left_out: dict[str, LeftOut]
) -> Iterator[tuple[pa.RecordBatch, dict[str, LeftOut]]]:
    """Yield a batch, or single rows without their too large texts."""
    large = [longest_text(column) > LARGEST_TEXT for column in batch.columns]
    if not any(large):
        yield batch, left_out
    elif batch.num_rows > 1:
        for row in range(batch.num_rows):
            yield from _without_large_texts(batch.slice(row, 1), left_out)
    else:
        names = itertools.compress(batch.schema.names, large)
        what = {name: LeftOut(f"column {name} has a text of more than 8 MB") for name in names}
        yield batch.select([n for n, is_large in enumerate(large) if not is_large]), left_out | what


def _why_too_large(url: str, group: int, column: str) -> LeftOut | None:
    """Return why a column of texts is omitted: even a few rows' texts do not fit into memory."""
    try:
        for batch in _batches(url, group, [column], _BATCH_ROWS):
            if not is_text(batch.schema.types[0]):
                break
    except MemoryError:
        return LeftOut(f"column {column} needs more memory than texts may take")
    return None


def _batches(url: str, group: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    with stores.open_parquet(stores.location(url)) as file:
        some = columns if len(columns) < len(file.schema_arrow) else None
        for batch in file.iter_batches(rows, row_groups=[group], columns=some):
            progress()
            yield batch
