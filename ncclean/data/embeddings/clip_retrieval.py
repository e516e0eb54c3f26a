"""clip-retrieval's layout, which `ncclean score --embeddings` writes as well.

`img_emb/img_emb_<i>.npy` and `text_emb/text_emb_<i>.npy` beside `metadata/metadata_<i>.parquet`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from ncclean.data.embeddings.layout import EmbeddingLayout, Keys, Vectors
from ncclean.data.embeddings.vectors import npy_shape, read_npy
from ncclean.data.layout import Source, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.parquet_table import table_rows
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError

_METADATA, _IMAGES, _TEXTS = "metadata", "img_emb", "text_emb"
_ENDINGS = {_METADATA: "parquet", _IMAGES: "npy", _TEXTS: "npy"}


class ClipRetrieval(EmbeddingLayout):
    """clip-retrieval's layout: numbered `.npy` matrices of images and captions, read by rows."""

    name = "clip-retrieval"
    files = f"{_IMAGES}, {_TEXTS} and {_METADATA} as clip-retrieval writes them"

    def files_of(self, source: Source, options: SourceOptions) -> list[SourceFile]:
        if _METADATA not in source.names or not source.names & {_IMAGES, _TEXTS}:
            return []
        numbers = {name: _numbered(source, name) for name in _ENDINGS}
        for name, files in numbers.items():
            if not files:
                hint = " (clip-retrieval writes it with --enable_text)" if name == _TEXTS else ""
                raise InputError(f"{source.below(name)} holds no {name}_<i> files{hint}")
        # A number that only some of them have makes a shard that fails.
        return [
            SourceFile(
                self,
                _file(source, numbers, _METADATA, number),
                (_file(source, numbers, _IMAGES, number), _file(source, numbers, _TEXTS, number)),
            )
            for number in sorted(set().union(*numbers.values()))
        ]

    def cut(self, row_groups: Sequence[int], rows: int) -> list[int]:
        total = sum(row_groups)
        return [*range(rows, total, rows), total]

    def dimensions(self, shard: ShardRef, keys: Keys | None) -> tuple[int, int]:
        image, text = (npy_shape(file)[1] for file in shard.files)
        return image, text

    def read(self, shard: ShardRef, table: pa.Table, keys: Keys | None) -> tuple[Vectors, Vectors]:
        rows = sum(table_rows(shard.url)[0])  # of the whole file
        for file in shard.files:
            count, _ = npy_shape(file)
            if count != rows:
                raise ShardError(f"{shard.url} has {rows:,} rows, but {file} {count:,}")
        image, text = (Vectors(read_npy(file, shard.rows)) for file in shard.files)
        return image, text


def _numbered(source: Source, name: str) -> dict[int, str]:
    pattern = re.compile(rf"{name}_(\d+)\.{_ENDINGS[name]}$")
    return {
        int(match[1]): source.below(name, file)
        for file in sorted(source.names_in(name))
        if (match := pattern.match(file))
    }


def _file(source: Source, numbers: dict[str, dict[int, str]], name: str, number: int) -> str:
    """Return the actual or expected file of a number."""
    usual = source.below(name, f"{name}_{number}.{_ENDINGS[name]}")
    return numbers[name].get(number, usual)
