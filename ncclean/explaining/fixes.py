"""Decisions that give shifted captions back to their images, beside the table of causes.

They are those of `ncclean.storage.decisions`, with the shard and the key of each pair: an export
takes them without the score table.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

import duckdb
import pyarrow as pa
from upath import UPath

from ncclean.base import stores
from ncclean.base.schema import DECISIONS
from ncclean.base.small_tables import read_parquet
from ncclean.errors import InputError
from ncclean.explaining.cause_table import read_causes
from ncclean.explaining.shifts import Shift
from ncclean.storage.decisions import CORRECT, DROP, read_decisions, write_decisions
from ncclean.storage.tables import table_metadata

COMMAND = "explain"
FIXES = pa.schema([*DECISIONS, ("shard", pa.string()), ("key", pa.string())])


def fixes_path(causes: UPath) -> UPath:
    """The decisions beside a table of causes."""
    return causes.with_name(causes.name.removesuffix(".parquet") + ".fixes.parquet")


def fixes_of(connection: duckdb.DuckDBPyConnection, shifts: Iterable[Shift]) -> pa.Table | None:
    """The right caption of every pair of the runs; to drop those whose caption is beyond the end.

    Reads the view `pairs`. A pair of two runs has the decision of the first. None for a table
    without uids or captions.
    """
    columns = {row[0] for row in connection.execute("DESCRIBE pairs").fetchall()}
    if not {"text", "uid", "key"} <= columns:
        return None
    decisions: dict[tuple[str, str, int], dict[str, object]] = {}
    now = datetime.now(timezone.utc)
    for shift in shifts:
        connection.register("shifted", pa.table({"place": shift.places, "source": shift.sources}))
        rows = connection.execute(
            "SELECT own.shard, own.key, coalesce(own.caption_number, 0), own.uid, other.text "
            "FROM shifted JOIN pairs AS own ON own.place = shifted.place "
            "LEFT JOIN pairs AS other ON other.place = shifted.source"
        ).fetchall()
        connection.unregister("shifted")
        for shard, key, number, uid, text in rows:
            is_there = bool((text or "").strip())
            decision = {
                "uid": uid, "caption_number": number, "decision": CORRECT if is_there else DROP,
                "caption": text if is_there else None, "reviewer": f"ncclean {COMMAND}",
                "time": now, "shard": shard, "key": key,
            }  # fmt: skip
            decisions.setdefault((str(shard), str(key), int(number)), decision)
    return pa.Table.from_pylist(list(decisions.values()), FIXES)


def write_fixes(out: UPath, fixes: pa.Table) -> None:
    """Write the decisions, whole or not at all."""
    write_decisions(out, fixes, COMMAND)


def read_fixes(causes: str) -> tuple[str, int]:
    """The file of the decisions beside a table of causes, and the number of captions in it.

    Raises `InputError` for a table that `ncclean explain` wrote without them.
    """
    read_causes(causes)
    path = str(fixes_path(stores.location(causes)))
    if "fixes" not in table_metadata(causes):
        raise InputError(
            f"{causes} has no shifted captions to mend: run `ncclean explain` with --embeddings, "
            "on scores that have captions"
        )
    kinds = [decision.decision for decision in read_decisions(path)]
    table = read_parquet(path, FIXES.names, what=f"decisions of `ncclean {COMMAND}`")
    if table.column("shard").null_count or table.column("key").null_count:
        raise InputError(
            f"{path} is not as `ncclean {COMMAND}` wrote it: a shard or key is missing"
        )
    return path, kinds.count(CORRECT)
