"""Lance data sets with a column of images, or of their paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ncclean.data.images.arrow_rows import rows_of_batch
from ncclean.data.images.layout import RowLayout
from ncclean.data.images.tables import name_images
from ncclean.data.images.text_rows import BrokenRow, Row, row_keys
from ncclean.data.lance_table import ENDING, is_lance, lance_batches, lance_columns, lance_pieces
from ncclean.data.layout import Cut, Facts, Source, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.parquet_table import vector_columns
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

_BATCH_ROWS = 64


class LanceImages(RowLayout):
    """Images in Lance data sets, of which any rows can be read; pieces end with their fragments."""

    name = "lance"
    endings = (ENDING,)

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        if not is_lance(source.url):
            return []
        try:
            columns = lance_columns(source.url)
        except ShardError:
            return []
        return [source.url] if name_images(columns, options.image_key) else []

    def columns(self, url: str) -> pa.Schema:
        return lance_columns(url)

    def facts(self, file: SourceFile, options: SourceOptions) -> Facts:
        return Facts(0, "")  # each piece has its own

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        return [Cut(*piece[:2]) for piece in lance_pieces(file.url, self.unit_rows)]

    def units(self, file: SourceFile, name: str, options: SourceOptions) -> list[ShardRef]:
        pieces = lance_pieces(file.url, self.unit_rows)
        units = [] if not pieces else super().units(file, name, options)
        return [
            dataclasses.replace(unit, size=piece.size, version=piece.version)
            for unit, piece in zip(units, pieces, strict=True)
        ]

    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        first, last = shard.rows or (0, 0)
        schema = lance_columns(shard.url)
        names = [name for name in schema.names if name not in vector_columns(schema)]
        batches = lance_batches(shard.url, names, (first, last), _BATCH_ROWS, shard.version)
        done = first
        try:
            for batch in batches:
                for row in rows_of_batch(batch, row_keys(names)):
                    done += 1
                    yield row
            if done < last:
                raise ShardError(f"{done - first} rows, {last - first} were announced")
        except ShardError as error:
            yield from (BrokenRow(str(error)) for _ in range(last - done))
            raise
