"""Lance data sets with a column of vectors for images, and one for captions."""

from __future__ import annotations

from ncclean.data.embeddings.layout import ShardFiles
from ncclean.data.embeddings.parquet_vectors import ParquetVectors
from ncclean.data.lance_table import is_lance
from ncclean.data.source import Source


class LanceVectors(ParquetVectors):
    """Columns of lists of floats, as in Parquet."""

    name = "lance-vectors"
    files = "Lance data sets"
    keys_of = "Lance"

    def matches(self, source: Source) -> bool:
        return is_lance(source.url)

    def shards(self, source: Source) -> list[ShardFiles]:
        return [ShardFiles(self.name, source.url)]
