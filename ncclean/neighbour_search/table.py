"""The table of neighbours, in the columns of `schema.NEIGHBOURS`, and its summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

import ncclean
from ncclean.base import schema
from ncclean.base.atomic import published
from ncclean.base.output_mark import mark
from ncclean.neighbour_search.chunked import VALUES, add_counts, chunks
from ncclean.neighbour_search.lemon import LemonParameters
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.result import CorpusNeighbours, ReferenceMatches
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
            "better_captions": pa.array(result.better.captions[rows]),
            "better_images": pa.array(result.better.images[rows]),
            "mutual_nearest": pa.array(result.better.mutual_nearest(rows)),
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


_RECORDED = ("linkage", "k", "seed")  # in the metadata of the table; thresholds are in the summary


@dataclass(frozen=True)
class NeighboursSummary:
    """The summary of a search: its findings, index, recall and time.

    The recalls are measured on a sample of this corpus against exact search: of the k nearest
    neighbours by image and by text, of the k captions nearest to an image and vice versa; and
    `duplicate_recall` is the share of pairs with a near-duplicate for which a search with the
    effort of the grouping finds one. All are 1 for the flat index. `left_out` counts the pairs that
    have no usable embeddings, and so no row.
    """

    pairs: int
    left_out: int
    distinct_images: int
    distinct_texts: int
    repeated_uids: int
    image_groups: int
    image_duplicates: int
    text_groups: int
    text_duplicates: int
    pair_groups: int
    pair_duplicates: int
    mutual_nearest: int
    whitened: bool
    image_threshold: float
    text_threshold: float
    index_image: str
    index_text: str
    exact: bool
    image_recall: float
    text_recall: float
    image_to_text_recall: float
    text_to_image_recall: float
    image_duplicate_recall: float
    text_duplicate_recall: float
    seconds: float
    out: str
    clusters: int
    reference_images: int | None = None
    contaminated: int | None = None
    contamination_threshold: float | None = None


def summarize(
    result: CorpusNeighbours, out: str, seconds: float, reference_images: int = 0
) -> NeighboursSummary:
    """Summarise a finished neighbour search that took `seconds`."""
    image, text = result.image, result.text
    counts = {}
    for name, sizes in (("image", image.sizes), ("text", text.sizes), ("pair", result.pair_sizes)):
        counts[f"{name}_groups"] = _above(sizes, 1)
        counts[f"{name}_duplicates"] = len(sizes) - _above(sizes, 0)
    clusters = np.zeros(int(result.cluster.max()) + 1, np.int64)
    add_counts(clusters, result.cluster)
    pairs = len(result.pair_group)
    return NeighboursSummary(
        pairs=pairs,
        left_out=result.left_out,
        distinct_images=image.distinct,
        distinct_texts=text.distinct,
        repeated_uids=result.repeated_uids,
        **counts,
        mutual_nearest=sum(
            int(np.count_nonzero(result.better.mutual_nearest(rows)))
            for rows in chunks(pairs, VALUES)
        ),
        whitened=result.whiten,
        image_threshold=image.threshold,
        text_threshold=text.threshold,
        index_image=image.index,
        index_text=text.index,
        exact=result.is_exact,
        image_recall=image.recall,
        text_recall=text.recall,
        image_to_text_recall=text.across_recall,
        text_to_image_recall=image.across_recall,
        image_duplicate_recall=image.duplicate_recall,
        text_duplicate_recall=text.duplicate_recall,
        seconds=round(seconds, 2),
        out=out,
        clusters=_above(clusters, 0),
        **_reference_counts(result, reference_images),
    )


def _above(values: np.ndarray, least: int) -> int:
    """Count the values that are greater than `least`."""
    return sum(int(np.count_nonzero(values[rows] > least)) for rows in chunks(len(values), VALUES))


def _reference_counts(result: CorpusNeighbours, images: int) -> dict[str, Any]:
    if result.reference is None:
        return {}
    return {
        "reference_images": images,
        "contaminated": int(np.count_nonzero(result.reference.contaminated)),
        "contamination_threshold": result.reference.threshold,
    }


def neighbour_metadata(options: NeighbourOptions, summary: NeighboursSummary) -> dict[str, str]:
    lemon = asdict(LemonParameters())
    figures = asdict(summary)
    del figures["out"], figures["seconds"]
    fields = {
        **{name: value for name, value in asdict(options).items() if name in _RECORDED},
        **{f"lemon_{name}": value for name, value in lemon.items() if name != "k"},
        **figures,
        "ncclean_version": ncclean.__version__,
        "made_by": mark("neighbours"),
        "schema_version": schema.SCHEMA_VERSION,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}
