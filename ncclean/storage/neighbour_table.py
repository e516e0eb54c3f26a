"""The table of neighbours, in the columns of `schema.NEIGHBOURS`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import schema
from ncclean.atomic import published
from ncclean.scoring.neighbours.corpus import CorpusNeighbours
from ncclean.storage.parts import ROW_GROUP_ROWS


def write_neighbours(path: UPath, table: pa.Table, metadata: Mapping[str, str]) -> None:
    """Publish the table as one Parquet file."""
    with published(path) as aside:
        pq.write_table(
            table.replace_schema_metadata(dict(metadata)),
            aside,
            compression="zstd",
            row_group_size=ROW_GROUP_ROWS,
            use_dictionary=["shard"],
        )


def neighbour_table(pairs: pa.Table, result: CorpusNeighbours) -> pa.Table:
    """One row for each of the n pairs, of which `pairs` has uid, shard and key."""
    uid = pairs.column("uid").combine_chunks()
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        **{name: pairs.column(name) for name in ("uid", "shard", "key")},
        "image_group": _named(uid, result.image_group),
        "text_group": _named(uid, result.text_group),
        "pair_group": _named(uid, result.pair_group),
        "image_group_similarity": pa.array(
            result.image.similarity, pa.float32(), mask=_alone(result.image_group)
        ),
        "text_group_similarity": pa.array(
            result.text.similarity, pa.float32(), mask=_alone(result.text_group)
        ),
        "better_captions": pa.array(result.rivals.captions),
        "better_images": pa.array(result.rivals.images),
        "mutual_nearest": pa.array(result.rivals.mutual_nearest),
        "lemon_score": pa.array(result.lemon, pa.float32(), mask=np.isnan(result.lemon)),
    }
    return pa.table([columns[name] for name in schema.NEIGHBOURS.names], schema=schema.NEIGHBOURS)


def _alone(group: np.ndarray) -> np.ndarray:
    """(n,) bool: the pair is the only one of its group."""
    alone: np.ndarray = np.bincount(group, minlength=len(group))[group] == 1
    return alone


def _named(uid: pa.Array, group: np.ndarray) -> pa.Array:
    """Groups by the uid of their first pair, null for pairs that are alone."""
    return uid.take(pa.array(group, mask=_alone(group)))
