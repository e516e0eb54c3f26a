"""Clusters of a corpus's images, as a table that joins the scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean.base.atomic import published
from ncclean.base.progress import Progress
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.working_folder import Work
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.inverted_lists import (
    TRAINING_ROWS_PER_LIST,
    nearest_lists,
    train_lists,
)

_PAIRS_PER_CLUSTER, _MOST = 400, 256
_CLUSTERS_PER_REGION = 4
_SAMPLED = 4 * TRAINING_ROWS_PER_LIST  # images of a cluster that it is learnt from
_CLUSTERED = "clustered"  # a mark in the working folder
_SCHEMA = pa.schema(
    [
        ("shard", pa.string()),
        ("key", pa.string()),
        ("caption_number", pa.int16()),
        ("cluster", pa.int32()),
        ("region", pa.int32()),
    ]
)


def clusters_path(out: UPath) -> UPath:
    """The table of clusters beside that of the causes."""
    return out.with_name(out.name.removesuffix(".parquet") + ".clusters.parquet")


def cluster_once(
    work: Work,
    out: UPath,
    embeddings: Sequence[str],
    keys: tuple[str, str] | None,
    options: ExplainOptions,
    progress: Progress,
) -> None:
    """Write the clusters of the images, unless that is done."""
    if work.has(_CLUSTERED):
        return
    with published(out) as aside:
        write_clusters(aside, embeddings, keys, options.clusters, options.seed, progress)
    with work.writing(_CLUSTERED) as aside:
        aside.touch()


def write_clusters(
    out: Path,
    embeddings: Sequence[str],
    keys: tuple[str, str] | None,
    clusters: int | None,
    seed: int,
    progress: Progress,
) -> None:
    """Write the cluster of each embedded pair's image to a Parquet file, and the cluster's region.

    k-means on a sample of the images, then the nearest centroid for each; regions are clusters of
    centroids, a quarter as many. One block of embeddings is in memory at a time. Raises
    `InputError` for embeddings that cannot be read.
    """
    blocks = embedded_blocks(resolve_embeddings(embeddings), keys)
    rng = np.random.default_rng(seed)
    sample = np.empty((0, blocks[0].dim), np.float32)
    wanted, seen = (clusters or _MOST) * _SAMPLED, 0
    progress.say("looking at the images' embeddings")
    for number, block in enumerate(blocks):
        images = block.read().image
        seen += len(images)
        # Every block fills the sample evenly; it is thinned where it is too large.
        part = rng.permutation(len(images))[: max(1, 2 * wanted // len(blocks))]
        sample = np.concatenate([sample, np.asarray(images[np.sort(part)], np.float32)])
        if len(sample) > 2 * wanted:
            sample = sample[rng.permutation(len(sample))[:wanted]]
        progress.advance(number + 1, len(blocks), "blocks")
    if len(sample) > wanted:
        sample = sample[rng.permutation(len(sample))[:wanted]]
    count = clusters or int(np.clip(seen // _PAIRS_PER_CLUSTER, 2, _MOST))
    progress.say(f"clustering {seen:,} images")
    centroids = train_lists(sample, count, seed)
    regions = max(2, count // _CLUSTERS_PER_REGION)
    region_of = nearest_lists(centroids, train_lists(centroids, regions, seed), 1)[:, 0]
    with pq.ParquetWriter(out, _SCHEMA, compression="zstd") as writer:
        for number, block in enumerate(blocks):
            pairs = block.read()
            if len(pairs.image):
                nearest = nearest_lists(pairs.image, centroids, 1)[:, 0]
                facts = pairs.facts.select(_SCHEMA.names[:3])
                facts = facts.append_column("cluster", pa.array(nearest))
                facts = facts.append_column("region", pa.array(region_of[nearest]))
                writer.write_table(facts.cast(_SCHEMA))
            progress.advance(number + 1, len(blocks), "blocks")
