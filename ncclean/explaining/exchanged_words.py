"""A word that stands for another in a cause of near misses."""

from __future__ import annotations

import duckdb

# Of the pairs of a cause with a probably wrong word, so many have the same two words.
_LEAST_SHARE = 0.2
_FEWEST = 10


def exchanged(connection: duckdb.DuckDBPyConnection, group: int, value: str) -> str | None:
    """Name the two words that most near misses of a group have in common; None if no two.

    `value` is the column of their probability in the view `pairs`.
    """
    columns = {row[0] for row in connection.execute("DESCRIBE pairs").fetchall()}
    if not {"suspect_word", "better_word"} <= columns:
        return None
    row = connection.execute(
        "SELECT suspect_word, better_word, count(*) AS pairs, sum(count(*)) OVER () AS all_pairs "
        f"FROM members JOIN pairs USING (place) WHERE member = {group} AND {value} >= 0.5 "
        "AND suspect_word IS NOT NULL AND better_word IS NOT NULL "
        "GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 1"
    ).fetchone()
    if row is None or row[2] < max(_FEWEST, _LEAST_SHARE * row[3]):
        return None
    suspect, better, pairs, of_all = row
    return f"{suspect} stands for {better} in {pairs:,} of {of_all:,} captions with a wrong word"
