"""The embeddings of some pairs, read block by block."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa

from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.neighbour_search.blocks import embedded_blocks

MOST_PAIRS = 100_000  # of a member: more tell little more


def read_vectors(
    connection: duckdb.DuckDBPyConnection,
    wanted: str,
    embeddings: Sequence[str],
    keys: tuple[str, str] | None,
) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Read, by member, places in order, (n, d) images and (n, d) captions.

    `wanted` is SQL for the columns `member`, `place`, `shard`, `key` and `caption_number`. Of each
    member the first `MOST_PAIRS` at most; pairs without vectors are left out.
    """
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE wanted AS SELECT member, place, shard, key, "
        f"coalesce(caption_number, 0) AS caption_number FROM ({wanted}) "
        f"QUALIFY row_number() OVER (PARTITION BY member ORDER BY place) <= {MOST_PAIRS}"
    )
    parts: dict[int, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
    for block in embedded_blocks(resolve_embeddings(embeddings), keys):
        pairs = block.read()
        facts = pairs.facts.select(["shard", "key", "caption_number"])
        facts = facts.append_column("number", pa.array(np.arange(len(facts), dtype=np.int64)))
        connection.register("embedded", facts)
        rows = connection.execute(
            "SELECT member, place, number FROM wanted JOIN embedded "
            "USING (shard, key, caption_number) ORDER BY member, place"
        ).fetchnumpy()
        connection.unregister("embedded")
        for member in np.unique(rows["member"]):
            mine = rows["member"] == member
            at = rows["number"][mine]
            part = rows["place"][mine], pairs.image[at], pairs.text[at]
            parts.setdefault(int(member), []).append(part)
    connection.execute("DROP TABLE wanted")
    vectors = {}
    for member, several in parts.items():
        place, image, text = (np.concatenate(side) for side in zip(*several, strict=True))
        order = np.argsort(place, kind="stable")
        vectors[member] = place[order], image[order], text[order]
    return vectors
