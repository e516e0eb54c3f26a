"""Read the embeddings of a corpus block by block: vectors of some pairs, clusters of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean.base.output_mark import mark
from ncclean.base.progress import Progress
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.data.fingerprints import Fingerprints, agreed, as_metadata, fingerprints_of
from ncclean.explaining.cause_table import COMMAND
from ncclean.neighbour_search.blocks import EmbeddedBlock, embedded_blocks
from ncclean.neighbour_search.inverted_lists import (
    TRAINING_ROWS_PER_LIST,
    nearest_lists,
    train_lists,
)

MOST_PAIRS = 100_000  # per member: more add little
_PAIRS_PER_CLUSTER, _MOST = 400, 256
_CLUSTERS_PER_REGION = 4
_SAMPLED = 4 * TRAINING_ROWS_PER_LIST  # images per cluster to learn it from
_SCHEMA = pa.schema(
    [
        ("shard", pa.string()),
        ("key", pa.string()),
        ("caption_number", pa.int16()),
        ("cluster", pa.int32()),
        ("region", pa.int32()),
    ],
    metadata={"made_by": mark(COMMAND)},
)


def clusters_path(out: UPath) -> UPath:
    """Return the path of the table of image clusters beside a table of causes."""
    return out.with_name(out.name.removesuffix(".parquet") + ".clusters.parquet")


@dataclass(frozen=True)
class Embedded:
    """The embeddings of a corpus, in blocks of which one at a time is in memory."""

    blocks: Sequence[EmbeddedBlock]

    @classmethod
    def open(cls, embeddings: Sequence[str], keys: tuple[str, str] | None) -> Embedded:
        """Find the blocks of embeddings. Raises `InputError` for unreadable embeddings."""
        return cls(embedded_blocks(resolve_embeddings(embeddings), keys))

    def vectors(
        self, connection: duckdb.DuckDBPyConnection, wanted: str
    ) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Read the embeddings of selected pairs, (n, d) images and (n, d) captions for each group.

        `wanted` is SQL for the columns `member` (the group's number), `place`, `shard`, `key` and
        `caption_number`. Returns (n,) ascending places, images and captions by `member`. At most
        the first `MOST_PAIRS` of each group are read; pairs without vectors are omitted.
        """
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE wanted AS SELECT member, place, shard, key, "
            f"coalesce(caption_number, 0) AS caption_number FROM ({wanted}) "
            f"QUALIFY row_number() OVER (PARTITION BY member ORDER BY place) <= {MOST_PAIRS}"
        )
        parts = []
        for block in self.blocks:
            pairs = block.read()
            facts = pairs.facts.select(["shard", "key", "caption_number"])
            facts = facts.append_column("number", pa.array(np.arange(len(facts), dtype=np.int64)))
            connection.register("embedded", facts)
            rows = connection.execute(
                "SELECT member, place, number FROM wanted JOIN embedded "
                "USING (shard, key, caption_number)"
            ).fetchnumpy()
            connection.unregister("embedded")
            at = rows["number"]
            parts.append((rows["member"], rows["place"], pairs.image[at], pairs.text[at]))
        connection.execute("DROP TABLE wanted")
        member, place, image, text = (np.concatenate(side) for side in zip(*parts, strict=True))
        order = np.lexsort((place, member))
        members, ends = np.unique(member[order], return_index=True)
        several = zip(members, np.split(order, ends[1:]), strict=False)
        return {int(key): (place[rows], image[rows], text[rows]) for key, rows in several}

    def write_clusters(
        self, out: Path, clusters: int | None, seed: int, progress: Progress
    ) -> None:
        """Cluster the images; write the cluster and region of each pair's image to a Parquet file.

        k-means on a sample of the images, then the nearest centroid for each. Regions are clusters
        of centroids, a quarter as many. `clusters` None chooses their number by that of the pairs.
        """
        rng = np.random.default_rng(seed)
        sample = np.empty((0, self.blocks[0].dim), np.float32)
        wanted, seen = (clusters or _MOST) * _SAMPLED, 0
        progress.say("looking at the images' embeddings")
        for number, block in enumerate(self.blocks):
            images = block.read().image
            seen += len(images)
            # Every block fills the sample evenly; it is thinned when too large.
            part = rng.permutation(len(images))[: max(1, 2 * wanted // len(self.blocks))]
            sample = np.concatenate([sample, np.asarray(images[np.sort(part)], np.float32)])
            if len(sample) > 2 * wanted:
                sample = sample[rng.permutation(len(sample))[:wanted]]
            progress.advance(number + 1, len(self.blocks), "blocks")
        if len(sample) > wanted:
            sample = sample[rng.permutation(len(sample))[:wanted]]
        count = clusters or int(np.clip(seen // _PAIRS_PER_CLUSTER, 2, _MOST))
        progress.say(f"clustering {seen:,} images")
        centroids = train_lists(sample, count, seed)
        regions = max(2, count // _CLUSTERS_PER_REGION)
        region_of = nearest_lists(centroids, train_lists(centroids, regions, seed), 1)[:, 0]
        carried: list[Fingerprints] = []
        with pq.ParquetWriter(out, _SCHEMA, compression="zstd") as writer:
            for number, block in enumerate(self.blocks):
                pairs = block.read()
                carried.append(fingerprints_of(pairs.facts.schema))
                if len(pairs.image):
                    nearest = nearest_lists(pairs.image, centroids, 1)[:, 0]
                    facts = pairs.facts.select(_SCHEMA.names[:3])
                    facts = facts.append_column("cluster", pa.array(nearest))
                    facts = facts.append_column("region", pa.array(region_of[nearest]))
                    writer.write_table(facts.cast(_SCHEMA))
                progress.advance(number + 1, len(self.blocks), "blocks")
            writer.add_key_value_metadata(as_metadata(agreed(carried)))
