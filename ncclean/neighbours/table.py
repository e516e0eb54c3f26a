"""The table of neighbours, in the columns of `schema.NEIGHBOURS`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import schema
from ncclean.atomic import published
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
        self._uids = pairs.column("uid").chunks
        self._ends = np.cumsum([len(uids) for uids in self._uids])

    def rows(self, rows: slice) -> pa.Table:
        result = self._result
        pairs = self._pairs.slice(rows.start, rows.stop - rows.start)
        lemon = result.lemon[rows]
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            name: pairs.column(name) for name in ("uid", "shard", "key", "caption_number")
        }
        for name, side in (("image", result.image), ("text", result.text)):
            group = side.group[rows]
            alone = side.members[group] == 1
            columns[f"{name}_group"] = self._named(group, alone)
            columns[f"{name}_group_similarity"] = pa.array(
                side.similarity[rows], pa.float32(), mask=alone
            )
        group = result.pair_group[rows]
        columns |= {
            "pair_group": self._named(group, result.pair_sizes[group] == 1),
            "better_captions": pa.array(result.rivals.captions[rows]),
            "better_images": pa.array(result.rivals.images[rows]),
            "mutual_nearest": pa.array(result.rivals.mutual_nearest(rows)),
            "lemon_score": pa.array(lemon, pa.float32(), mask=np.isnan(lemon)),
            "cluster": pa.array(result.cluster[rows]),
            **_of_reference(len(pairs), rows, result.reference, self._reference),
        }
        ordered = [columns[name] for name in schema.NEIGHBOURS.names]
        return pa.table(ordered, schema=schema.NEIGHBOURS)

    def _named(self, group: np.ndarray, alone: np.ndarray) -> pa.Array:
        """Groups by the uid of their first pair, null for pairs that are alone."""
        firsts, places = np.unique(group[~alone], return_inverse=True)
        of_chunk = np.searchsorted(self._ends, firsts, side="right")
        names = [pa.array([], pa.string())]
        for number in np.unique(of_chunk):
            uids = self._uids[number]
            begin = self._ends[number] - len(uids)
            rows = pa.array(firsts[of_chunk == number] - begin)
            names.append(uids.take(rows).cast(pa.string()))
        place = np.zeros(len(group), np.int64)
        place[~alone] = places
        return pa.concat_arrays(names).take(pa.array(place, mask=alone))


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
