"""The table of neighbours, in the columns of `schema.NEIGHBOURS`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import schema
from ncclean.atomic import published
from ncclean.data.embeddings.pairs import images_of
from ncclean.neighbours.reference import ReferenceMatches
from ncclean.neighbours.result import CorpusNeighbours
from ncclean.storage.parts import ROW_GROUP_ROWS


def write_neighbours(
    path: UPath,
    pairs: pa.Table,
    result: CorpusNeighbours,
    metadata: Mapping[str, str],
    reference: pa.Array | None = None,
) -> None:
    """Publish one Parquet file with one row for each of the n pairs, a row group at a time.

    `pairs` has the first four columns, `reference` the uids of what they were compared with.
    """
    columns = _Columns(pairs, result, reference)
    with published(path) as aside, pq.ParquetWriter(
        aside, schema.NEIGHBOURS.with_metadata(dict(metadata)), compression="zstd",
        use_dictionary=["shard"],
    ) as writer:  # fmt: skip
        for start in range(0, max(len(pairs), 1), ROW_GROUP_ROWS):
            writer.write_table(columns.rows(slice(start, start + ROW_GROUP_ROWS)))


class _Columns:
    """The columns of the table, of some rows at a time."""

    def __init__(
        self, pairs: pa.Table, result: CorpusNeighbours, reference: pa.Array | None
    ) -> None:
        self._pairs, self._result, self._reference = pairs, result, reference
        # Offsets of 64 bits: the names of groups are taken from all of them.
        self._uid = pairs.column("uid").cast(pa.large_string())
        self._groups = {
            "image": result.image.group, "text": result.text.group, "pair": result.pair_group,
        }  # fmt: skip
        # The captions of one image are no near-duplicates of it.
        self._alone = {
            "image": _alone(result.image.group, images_of(pairs)),
            "text": _alone(result.text.group),
            "pair": _alone(result.pair_group),
        }

    def rows(self, rows: slice) -> pa.Table:
        result = self._result
        pairs = self._pairs.slice(rows.start, rows.stop - rows.start)
        alone = {name: values[rows] for name, values in self._alone.items()}
        lemon = result.lemon[rows]
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            **{name: pairs.column(name) for name in ("uid", "shard", "key", "caption_number")},
            **{
                f"{name}_group": self._named(group[rows], alone[name])
                for name, group in self._groups.items()
            },
            **{
                f"{name}_group_similarity": pa.array(
                    side.similarity[rows], pa.float32(), mask=alone[name]
                )
                for name, side in (("image", result.image), ("text", result.text))
            },
            "better_captions": pa.array(result.rivals.captions[rows]),
            "better_images": pa.array(result.rivals.images[rows]),
            "mutual_nearest": pa.array(result.rivals.mutual_nearest[rows]),
            "lemon_score": pa.array(lemon, pa.float32(), mask=np.isnan(lemon)),
            "cluster": pa.array(result.cluster[rows]),
            **_of_reference(len(pairs), rows, result.reference, self._reference),
        }
        ordered = [columns[name] for name in schema.NEIGHBOURS.names]
        return pa.table(ordered, schema=schema.NEIGHBOURS)

    def _named(self, group: np.ndarray, alone: np.ndarray) -> pa.ChunkedArray:
        """Groups by the uid of their first pair, null for pairs that are alone."""
        return self._uid.take(pa.array(group, mask=alone)).cast(pa.string())


def _of_reference(
    count: int, rows: slice, matches: ReferenceMatches | None, uids: pa.Array | None
) -> dict[str, pa.Array]:
    names = ("reference_similarity", "nearest_reference", "contaminated")
    if matches is None or uids is None:
        return {name: pa.nulls(count, schema.NEIGHBOURS.field(name).type) for name in names}
    columns = (
        pa.array(matches.similarity[rows], pa.float32()),
        uids.take(pa.array(matches.nearest[rows])),
        pa.array(matches.contaminated[rows]),
    )
    return dict(zip(names, columns, strict=True))


def _alone(group: np.ndarray, images: np.ndarray | None = None) -> np.ndarray:
    """(n,) bool: the pair, or its image by (n,) numbers, is the only one of its group."""
    members = group
    if images is not None:
        members = group[np.unique(images, return_index=True)[1]]
    alone: np.ndarray = np.bincount(members, minlength=len(group))[group] == 1
    return alone
