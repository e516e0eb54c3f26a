"""Write the table of neighbours, with the columns of `schema.NEIGHBOURS`, and summarise it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

import ncclean
from ncclean.base import schema
from ncclean.base.atomic import published
from ncclean.base.output_mark import mark
from ncclean.data.fingerprints import as_metadata, fingerprints_of
from ncclean.neighbour_search.blocks import IDENTIFIERS
from ncclean.neighbour_search.lemon import LemonParameters
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.search import GROUP_SIZES, Neighbours
from ncclean.neighbour_search.stages import VALUES, chunks
from ncclean.storage.parts import ROW_GROUP_ROWS


def write_neighbours(
    path: UPath, neighbours: Neighbours, metadata: Mapping[str, str], reference: pa.Array | None
) -> None:
    """Write one Parquet file with a row for each pair, whole or not at all, a row group at a time.

    `reference` are the uids of the reference images.
    """
    count, uids = len(neighbours.corpus), neighbours.corpus.pairs["uid"]
    carried = as_metadata(fingerprints_of(neighbours.corpus.pairs.schema))
    with published(path) as aside, pq.ParquetWriter(
        aside, schema.NEIGHBOURS.with_metadata({**carried, **metadata}), compression="zstd",
        use_dictionary=["shard"],
    ) as writer:  # fmt: skip
        for rows in chunks(count, ROW_GROUP_ROWS):
            pairs = neighbours.corpus.pairs.slice(rows.start, rows.stop - rows.start)
            columns = {name: pairs[name] for name in IDENTIFIERS}
            for name, values in neighbours.columns(rows).items():
                if name.endswith("_group"):
                    columns[name] = _taken(uids, values)
                elif name == "nearest_reference" and reference is not None:
                    columns[name] = reference.take(pa.array(values))
                else:
                    columns[name] = pa.array(values, from_pandas=True)  # NaN is null
            arrays = [columns.get(name, pa.nulls(len(pairs))) for name in schema.NEIGHBOURS.names]
            table = pa.table(arrays, names=schema.NEIGHBOURS.names)
            writer.write_table(table.cast(schema.NEIGHBOURS))


def _taken(uids: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """The uids of (m,) rows; null for -1.

    Arrow would first concatenate the uids of all blocks.
    """
    distinct = np.unique(rows[rows >= 0])
    starts = np.cumsum([0, *map(len, uids.chunks)])
    ends = np.searchsorted(distinct, starts).tolist()
    taken = [pa.array([], pa.string())]
    for chunk, start, (first, last) in zip(uids.chunks, starts, pairwise(ends), strict=False):
        taken.append(chunk.take(pa.array(distinct[first:last] - start)).cast(pa.string()))
    places = pa.array(np.searchsorted(distinct, rows), mask=rows < 0)
    return pa.concat_arrays(taken).take(places)


_RECORDED = ("linkage", "k", "seed")  # in the metadata of the table; thresholds are in the summary


@dataclass(frozen=True)
class NeighboursSummary:
    """The summary of a search: its findings, index, recall and time.

    The recalls are measured on a sample of this corpus against exact search: of the k nearest
    neighbours by image and by text, and of the k captions nearest to an image and vice versa;
    `duplicate_recall` is the share of pairs with a near-duplicate for which a search with the
    grouping's effort finds one. All are 1 for the flat index. `left_out` counts the pairs that have
    no usable embeddings, and so no row.
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


def summarize(neighbours: Neighbours, out: str, seconds: float) -> NeighboursSummary:
    """Return the summary of a finished neighbour search that took `seconds`."""
    counts: dict[str, Any] = Counter()
    for rows in chunks(len(neighbours.corpus), VALUES):
        numbers = np.arange(rows.start, rows.stop)
        is_image = neighbours.groups["same_image"][rows] == numbers  # not its further captions
        for name, size in GROUP_SIZES.items():
            is_first = neighbours.groups[name][rows] == numbers
            is_shared = neighbours.groups[size][rows] > 1
            counts[f"{name}_groups"] += int(np.count_nonzero(is_first & is_shared))
            is_counted = is_shared & is_image if name == "image" else is_shared
            counts[f"{name}_duplicates"] += int(np.count_nonzero(~is_first & is_counted))
        columns = neighbours.columns(rows)
        counts["mutual_nearest"] += int(np.count_nonzero(columns["mutual_nearest"]))
        if "contaminated" in columns:
            counts["contaminated"] += int(np.count_nonzero(columns["contaminated"] & is_image))
    clusters: set[int] = set()
    for rows in chunks(len(neighbours.clusters), VALUES):
        clusters.update(np.unique(neighbours.clusters[rows]).tolist())
    return NeighboursSummary(
        **neighbours.facts, **counts, clusters=len(clusters), seconds=round(seconds, 2), out=out
    )


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
