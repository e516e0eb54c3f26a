"""Write parts, the rows of one shard, committed whole, and the embeddings that go with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean.base import schema
from ncclean.base.atomic import published, remove_leftovers
from ncclean.storage.shard_records import RECORD, ShardRecord

ROW_GROUP_ROWS = 100_000


def table_writer(
    path: Path, kinds: pa.Schema, metadata: Mapping[str, str] | None = None
) -> pq.ParquetWriter:
    """Open a Parquet writer for score tables: zstd, with dictionaries where values repeat.

    Byte positions are stored as differences from row to row.
    """
    return pq.ParquetWriter(
        path,
        kinds.with_metadata(dict(metadata) if metadata else None),
        compression="zstd",
        compression_level=1,
        use_dictionary=list(schema.DICTIONARY_COLUMNS),
        column_encoding=schema.DELTA_COLUMNS,
        write_statistics=True,
    )


def write_part(path: UPath, table: pa.Table, record: ShardRecord) -> None:
    """Publish the score table of one shard as its part, with its record in the metadata."""
    with published(path) as aside, table_writer(aside, table.schema) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata({RECORD: record.to_json()})


def embedding_files(folder: UPath, number: str) -> dict[str, UPath]:
    """Return the paths of a shard's embeddings in clip-retrieval's layout, by kind."""
    return {
        kind: folder / kind / f"{kind}_{number}.{ending}"
        for kind, ending in (("img_emb", "npy"), ("text_emb", "npy"), ("metadata", "parquet"))
    }


def remove_embedding_leftovers(folder: UPath, numbers: Iterable[str]) -> None:
    """Remove the temporary files that killed processes left of shards' embeddings."""
    names: dict[UPath, set[str]] = defaultdict(set)
    for number in numbers:
        for file in embedding_files(folder, number).values():
            names[file.parent].add(file.name)
    for place, files in names.items():
        remove_leftovers(place, files)


def write_embeddings(
    folder: UPath, number: str, image: np.ndarray, text: np.ndarray, metadata: pa.Table
) -> None:
    """Write (n, d) float16 embeddings in clip-retrieval's layout, the metadata last."""
    files = embedding_files(folder, number)
    for kind, values in (("img_emb", image), ("text_emb", text)):
        with published(files[kind]) as aside, open(aside, "wb") as stream:
            np.save(stream, values)
    with published(files["metadata"]) as aside:
        pq.write_table(metadata, aside, compression="zstd")
