"""Selection steps that compare pairs with one another: each makes a table of pairs by place.

A place is the row's in the input, see `JoinedScores.prepare`. Shard, row and caption number would
not do: shards of several tables may share names. `chain` is SQL for the candidates with the
`reason` why each is dropped, null for those still kept.
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ncclean.errors import InputError
from ncclean.selection.policy import Policy
from ncclean.selection.soft_cap import draw_keys, soft_cap_draws
from ncclean.storage.catalog import columns_of

_GROUPS = {"image": "image_group", "text": "text_group", "both": "pair_group"}
_BATCH_ROWS = 100_000
# What a person keeps stays whatever its score, so the others are those that exceed a limit.
_FIRST = "decision IS NULL"
_BEST_FIRST = f"{_FIRST}, goodness DESC NULLS LAST"


def among(table: str) -> str:
    """Return SQL that is true for a row of `candidates` whose place is in a table of places."""
    return f"place IN (SELECT place FROM {table})"


def image_of(candidate: str = "") -> str:
    """Return SQL that identifies a row's image, the same for all captions of the image.

    `candidate` is a prefix of the columns, such as `c.`.
    """
    names = ("place >> 40", "shard", "row", "uid")
    return ", ".join(f"{candidate}{name}" for name in names)


def find_duplicates(connection: duckdb.DuckDBPyConnection, policy: Policy) -> bool:
    """Create the table `duplicates` of near-duplicates to drop; return whether it has rows.

    It has all but the best pair of each group in the view `neighbours`. Raises `InputError` if that
    has no groups.
    """
    group = _GROUPS[policy.dedup_by or "both"]
    columns = set(columns_of(connection, "neighbours"))
    if not {"uid", group} <= columns:
        raise InputError(
            f"--dedup takes the table of `ncclean neighbours`: this one lacks uid or {group}"
        )
    number = "caption_number" if "caption_number" in columns else "NULL"
    # For near-duplicate images, all captions of the best one stay.
    kept = f"({image_of('c.')})" if group == _GROUPS["image"] else "c.place"
    connection.execute(
        f"""CREATE TEMP TABLE duplicates AS
        WITH groups AS (SELECT uid, {number} AS number, any_value({group}) AS grouped
                        FROM neighbours WHERE {group} IS NOT NULL GROUP BY ALL)
        SELECT place FROM (
          SELECT c.place, first_value({kept}) OVER (
            PARTITION BY grouped
            ORDER BY {_BEST_FIRST}, c.uid, c.place
          ) AS best, {kept} AS own
          FROM candidates c JOIN groups ON c.uid = groups.uid
            AND c.number = coalesce(groups.number, c.number)
          WHERE status = 'ok' AND passes_where
        ) WHERE own <> best"""
    )
    return _has_rows(connection, "duplicates")


def find_worse_captions(connection: duckdb.DuckDBPyConnection, chain: str) -> bool:
    """Create the table `worse_captions` of all but each image's best; true if it has rows."""
    connection.execute(
        f"""CREATE TEMP TABLE worse_captions AS
        SELECT place FROM ({chain}) WHERE reason IS NULL
        QUALIFY row_number() OVER (
          PARTITION BY {image_of()} ORDER BY {_BEST_FIRST}, number) > 1"""
    )
    return _has_rows(connection, "worse_captions")


def find_over_cap(connection: duckdb.DuckDBPyConnection, chain: str, policy: Policy) -> bool:
    """Create the table `over_cap` of all but `cap` pairs of each value; return whether it has rows.

    The best stay, or random ones if the policy has no score. Pairs without a value all stay.
    """
    order = f"{_BEST_FIRST}, uid, place"
    if policy.score is None:
        order = f"{_FIRST}, md5(concat_ws('/', uid, number, {policy.seed})), place"
    connection.execute(
        f"""CREATE TEMP TABLE over_cap AS
        SELECT place FROM ({chain}) WHERE reason IS NULL AND balance IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY balance ORDER BY {order}) > {policy.cap}"""
    )
    return _has_rows(connection, "over_cap")


def draw_pairs(connection: duckdb.DuckDBPyConnection, chain: str, policy: Policy) -> int:
    """Create the table `draws` of randomly drawn rows and their counts; return their sum.

    `chain` is SQL of the candidates with the reason to drop each. A pair without a score, which a
    person has kept, is not drawn. Raises `InputError` if there is no pair to draw from.
    """
    connection.execute(
        "CREATE TEMP TABLE urn AS SELECT row_number() OVER () - 1 AS id, uid, number, place, "
        f"goodness::DOUBLE AS goodness FROM ({chain}) WHERE reason IS NULL AND goodness IS NOT NULL"
    )
    scores: list[np.ndarray] = []
    keys: list[np.ndarray] = []
    reader: Any = connection.sql(
        "SELECT goodness, concat_ws('/', uid, number) AS name FROM urn ORDER BY id"
    ).to_arrow_reader(_BATCH_ROWS)
    for batch in reader:
        scores.append(batch.column("goodness").to_numpy(zero_copy_only=False))
        keys.append(draw_keys(batch.column("name").to_pylist(), policy.seed))
    if not scores:
        raise InputError("--sample: no pair is left to draw from")
    counts = soft_cap_draws(
        np.concatenate(scores), np.concatenate(keys), policy.size or 0, policy.penalty
    )
    ids = np.flatnonzero(counts)
    connection.register("drawn", pa.table({"id": ids, "count": counts[ids]}))
    connection.execute(
        "CREATE TEMP TABLE draws AS SELECT place, drawn.count AS count "
        "FROM urn JOIN drawn USING (id)"
    )
    connection.unregister("drawn")
    connection.execute("DROP TABLE urn")
    return int(counts.sum())


def _has_rows(connection: duckdb.DuckDBPyConnection, table: str) -> bool:
    return bool(connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])
