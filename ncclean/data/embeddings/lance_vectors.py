"""Lance data sets with a column of vectors for images, and one for captions."""

from __future__ import annotations

from ncclean.data.embeddings.parquet_vectors import ParquetVectors
from ncclean.data.lance_table import is_lance
from ncclean.data.layout import SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.source import Source


class LanceVectors(ParquetVectors):
    """Columns of lists of floats, as in Parquet."""

    name = "lance-vectors"
    files = "Lance data sets"
    keys_of = "Lance"

    def files_of(self, source: Source, options: SourceOptions) -> list[SourceFile]:
        return [SourceFile(self, source.url)] if is_lance(source.url) else []
