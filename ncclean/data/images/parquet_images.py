"""Parquet files with a column of images, or of their paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from ncclean import stores
from ncclean.data.images.arrow_rows import rows_of_batch
from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.tables import METADATA, PARQUET, TableLayout
from ncclean.data.images.text_rows import BrokenRow, LeftOut, Row, row_keys
from ncclean.data.layout import Cut, Facts, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.parquet_bounds import check_rows, inflated_columns, is_text, rows_at_once, texts
from ncclean.data.parquet_footer import read_chunks
from ncclean.data.parquet_pages import with_page_sizes
from ncclean.data.parquet_table import table_rows, vector_columns
from ncclean.data.shards import ShardRef
from ncclean.data.text_budget import LARGEST_TEXT
from ncclean.errors import ShardError, one_line

_BATCH_ROWS = 64


class ParquetImages(TableLayout):
    """Tables in Parquet; row groups are read by themselves."""

    name = "parquet"
    endings = files = (PARQUET,)
    form = "parquet"

    def below(self, layouts: Sequence[ImageLayout]) -> Sequence[ImageLayout]:
        return (self,)  # files of a repository lie in folders of splits

    def is_unreadable(self, url: str) -> bool:
        """The same; a Parquet file may hold anything unless it is an imagefolder's metadata."""
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
        place = stores.location(shard.url)
        try:
            chunks = read_chunks(place)
            file = stores.open_parquet(place)
            schema = file.schema_arrow
            if lists := [one.path for one in texts(file.schema) if one.max_repetition_level]:
                file.close()
                file = stores.open_parquet(place, lists)
        except (OSError, pa.ArrowException) as error:
            raise ShardError(f"cannot be read: {one_line(error)}") from error
        with file:
            check_rows(min(last, file.metadata.num_rows) - first, shard.size)
            vectors = vector_columns(file.schema_arrow)
            keys = {
                name: key
                for name, key in row_keys(file.schema_arrow.names).items()
                if name not in vectors
            }
            columns = [name for name in file.schema_arrow.names if whole or name not in vectors]
            text_names = {field.name for field in file.schema_arrow if is_text(field.type)}
            end = 0
            for group in range(file.num_row_groups):
                begin, end = end, end + file.metadata.row_group(group).num_rows
                if end <= first or begin >= last:
                    continue
                done = begin
                try:
                    sizes = with_page_sizes(place, chunks[group])
                    inflated = inflated_columns(sizes)
                    left_out = {
                        keys[name]: LeftOut(what) for name, what in inflated.items() if name in keys
                    }
                    kept = [name for name in columns if name not in inflated]
                    pages = [one for one in sizes if one.column in kept]
                    # One row at a time where each may have a text that is too large.
                    is_large = any(
                        one.largest > LARGEST_TEXT and one.column in text_names for one in pages
                    )
                    for batch in file.iter_batches(
                        1 if is_large else rows_at_once(pages, _BATCH_ROWS),
                        row_groups=[group],
                        columns=kept if len(kept) < len(file.schema_arrow) else None,
                    ):
                        for row in rows_of_batch(batch, keys, schema if whole else None, left_out):
                            done += 1
                            if done <= end:
                                yield row
                    if done != end:  # of pages whose headers are wrong
                        raise ValueError(f"{done - begin} rows, {end - begin} were announced")
                except (OSError, pa.ArrowException, ValueError) as error:
                    failure = failure or f"row group {group} cannot be read: {one_line(error)}"
                    for _ in range(end - done):
                        yield BrokenRow(failure)
            if end != file.metadata.num_rows:
                failure = failure or f"{end} rows, {file.metadata.num_rows} were announced"
        if failure:
            raise ShardError(failure)
