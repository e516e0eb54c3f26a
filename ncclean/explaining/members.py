"""Which pairs are in the groups that stand out: a file of places and groups, and its patterns."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

from ncclean.explaining.aggregates import Totals
from ncclean.explaining.folding import Patterns
from ncclean.explaining.kinds import Kind
from ncclean.explaining.prepared_pairs import MEMBERS, PAIRS, PreparedPairs
from ncclean.storage.catalog import connect
from ncclean.storage.quoting import quoted


def write_members(pairs: PreparedPairs, groups: Sequence[tuple[Kind, str]]) -> None:
    """Write the file of the groups' members, unless it is there."""
    if pairs.work.has(MEMBERS):
        return
    with (
        pairs.work.writing(MEMBERS) as aside,
        contextlib.closing(
            connect(
                [str(pairs.work.folder / PAIRS)], pairs.memory_limit, view="pairs", place="place",
                writable=aside, is_own=True,
            )
        ) as connection,
    ):  # fmt: skip
        query = "SELECT 0::BIGINT AS place, 0::INT AS member LIMIT 0"
        if groups:
            query = members_query(connection, groups)
        connection.execute(
            f"COPY ({query}) TO {quoted(str(aside))} (FORMAT parquet, COMPRESSION zstd)"
        )


def members_query(connection: duckdb.DuckDBPyConnection, groups: Sequence[tuple[Kind, str]]) -> str:
    """SQL for `place` and `member`, the number of a group, of every pair in a group.

    Creates the tables of the values that it reads.
    """
    by_kind: dict[str, tuple[Kind, list[tuple[int, str]]]] = {}
    for number, (kind, value) in enumerate(groups):
        by_kind.setdefault(kind.name, (kind, []))[1].append((number, value))
    parts = []
    for number, (kind, numbered) in enumerate(by_kind.values()):
        table = pa.table({
            "member": pa.array([n for n, _ in numbered], pa.int32()),
            "wanted": pa.array([value for _, value in numbered], pa.string()),
        })  # fmt: skip
        connection.register("wanted_values", table)
        connection.execute(f"CREATE OR REPLACE TEMP TABLE wanted_{number} AS FROM wanted_values")
        connection.unregister("wanted_values")
        value = f"unnest({kind.value})" if kind.several else kind.value
        parts.append(
            f"SELECT place, member FROM (SELECT place, {value} AS value FROM pairs) "
            f"JOIN wanted_{number} ON value = wanted"
        )
    return " UNION ALL ".join(parts)


def patterns_of(
    connection: duckdb.DuckDBPyConnection, groups: int, values: Sequence[str], totals: Totals
) -> Patterns:
    """Add up the pairs by the groups that they are in, from the view `members`."""
    sums = "".join(f", sum({name}::DOUBLE) AS s{n}" for n, name in enumerate(values))
    table = connection.sql(
        "SELECT ids, stratum, count(*) AS pairs"
        f"{sums} FROM (SELECT place, list_sort(list(member)) AS ids FROM members GROUP BY place) "
        "JOIN pairs USING (place) GROUP BY ids, stratum"
    ).to_arrow_table()
    lists = table.column("ids").combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.chunk(0) if lists.num_chunks else pa.array([], pa.list_(pa.int32()))
    columns = np.asarray(lists.flatten())
    ends = np.asarray(lists.offsets)
    ends = ends - (ends[0] if len(ends) else 0)
    if not len(ends):
        ends = np.zeros(1, np.int32)
    members = csr_matrix(
        (np.ones(len(columns)), columns, ends), shape=(len(table), groups), dtype=np.float64
    )
    return Patterns(
        members,
        np.asarray(table.column("stratum")).astype(int),
        np.asarray(table.column("pairs")).astype(float),
        np.stack([np.asarray(table.column(f"s{n}")) for n in range(len(values))]),
        totals,
    )
