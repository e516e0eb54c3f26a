"""Store the decisions of a review: in a journal that survives any kill, and in DuckDB."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Sequence

import duckdb
import pyarrow as pa
from upath import UPath

from ncclean.base import stores
from ncclean.base.schema import DECISIONS
from ncclean.data.fingerprints import Fingerprints
from ncclean.errors import InputError
from ncclean.storage.decisions import (
    NOTE,
    Decision,
    Pair,
    batch_of,
    decision_of,
    default_reviewer,
    journal_of,
    read_decisions,
    record_of,
    records_of,
    replayed,
    write_decisions,
)
from ncclean.storage.earlier import earlier_files
from ncclean.storage.entries import Entries
from ncclean.storage.lease import Lease


class Decided:
    """The decisions of a review, in the table `decided` of a connection and in a journal on disk.

    `decided` has a row for each decision, including repeated ones about a pair; `number` is their
    order, `batch` says which are undone together.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        out: UPath,
        reviewer: str | None = None,
        earlier: Sequence[Decision] = (),
        replaces: bool = False,
        scored: Fingerprints | None = None,
    ) -> None:
        """Open the journal, and read the existing decisions to resume a review.

        `earlier` are decisions of other files, which are also written to `out`. `replaces` allows
        `out` not to be a table of decisions, and replaces it at the end; a journal is read.
        `scored` are the fingerprints of the shards of the pairs.

        Raises `InputError` if another review writes to `out`, or it is not a table of decisions.
        """
        # A separate cursor: a decision does not wait for queries of the pairs.
        self._connection, self._lock, self._out = connection.cursor(), threading.RLock(), out
        self._reviewer, self._scored = reviewer or default_reviewer(), scored
        journal = journal_of(out)
        self._lease = Lease(
            journal.with_suffix(".lease"),
            "go on at its page, or give a file of your own as --out; `select` takes several "
            "--decisions, of which the latest about a pair counts",
        )
        self._entries = Entries(journal.with_suffix(".entries"))
        records = records_of(out)
        self._batch = max([0, *map(batch_of, records)])
        self._undone: list[int] = []
        self._to_redo: list[list[tuple[str, int, str, str | None, str | None]]] = []
        self._number = 0
        self._connection.execute(
            "CREATE TABLE decided (number BIGINT, batch BIGINT, uid VARCHAR, "
            "caption_number SMALLINT, decision VARCHAR, caption VARCHAR, reviewer VARCHAR, "
            "time TIMESTAMPTZ, note VARCHAR)"
        )
        self._connection.execute(
            f"CREATE VIEW decided_pairs AS SELECT * FROM decided WHERE decision <> '{NOTE}'"
        )
        before, is_there = replayed(records), stores.is_file(out)
        if before or is_there:
            try:
                before = read_decisions(str(out), scored)
            except InputError:
                if not replaces:
                    raise
        earlier = [*earlier, *before]
        self._insert(0, sorted(earlier, key=lambda decision: decision.time))

    @property
    def can_undo(self) -> bool:
        return bool(self._undone)

    @property
    def can_redo(self) -> bool:
        return bool(self._to_redo)

    def decide(
        self,
        pairs: Sequence[Pair],
        decision: str,
        captions: Sequence[str | None] | None = None,
        notes: Sequence[str | None] | None = None,
        *,
        batch: int | None = None,
    ) -> int | None:
        """Decide about pairs, in one batch, which `undo` reverts; return the batch's number.

        On return the decisions are on disk. They are added to `batch`, whatever else was decided
        meanwhile; if it has been undone, nothing is decided, and the result is 0. Raises
        `ValueError` for a caption number out of range.
        """
        if not pairs:
            return batch
        now = datetime.datetime.now(datetime.timezone.utc)
        none = [None] * len(pairs)
        rows = [
            decision_of(uid, number, decision, text, self._reviewer, now, note)
            for (uid, number), text, note in zip(
                pairs, captions or none, notes or none, strict=True
            )
        ]
        with self._lock:
            if batch is not None and batch not in self._undone:
                return 0
            self._to_redo.clear()
            if batch is None:
                self._batch += 1
                batch = self._batch
                self._undone.append(batch)
            self._entries.add(record_of(batch, rows))
            self._insert(batch, rows)
            return batch

    def undo(self) -> list[Pair]:
        """Revert the last batch of this session; return its pairs, none if there is none."""
        with self._lock:
            if not self._undone:
                return []
            batch = self._undone.pop()
            self._entries.add({"undo": batch})
            rows = self._connection.execute(
                "DELETE FROM decided WHERE batch = ? "
                "RETURNING uid, caption_number, decision, caption, note",
                [batch],
            ).fetchall()
            self._to_redo.append(rows)
            return [(uid, number) for uid, number, *_ in rows]

    def redo(self) -> list[Pair]:
        """Repeat the decisions last undone, as one batch; return their pairs.

        Nothing can be redone after another decision.
        """
        with self._lock:
            if not self._to_redo:
                return []
            *further, rows = self._to_redo
            batch = None
            for decision in dict.fromkeys(row[2] for row in rows):
                alike = [row for row in rows if row[2] == decision]
                pairs = [(uid, number) for uid, number, *_ in alike]
                captions, notes = [row[3] for row in alike], [row[4] for row in alike]
                batch = self.decide(pairs, decision, captions, notes, batch=batch)
            self._to_redo = further
            return [(uid, number) for uid, number, *_ in rows]

    def of_pairs(
        self, pairs: Sequence[Pair]
    ) -> dict[Pair, tuple[str, str | None, str, str | None]]:
        """Return decision, caption, reviewer and note for those of the pairs that have one."""
        with self._lock:
            rows = self._connection.execute(
                f"SELECT uid, caption_number, decision, caption, reviewer, note "
                f"FROM ({_current('WHERE list_contains(?, uid)')})",
                [[uid for uid, _ in pairs]],
            ).fetchall()
        return {(uid, number): rest for uid, number, *rest in map(tuple, rows)}  # type: ignore[misc]

    def counts(self) -> dict[str, int]:
        """Return the number of pairs by decision."""
        with self._lock:
            rows = self._connection.execute(
                f"SELECT decision, count(*) FROM ({_current()}) WHERE decision <> '{NOTE}' "
                "GROUP BY 1 ORDER BY 1"
            ).fetchall()
        return dict(rows)

    def save(self) -> int:
        """Write the decisions to `out`, and remove the journal; return their number."""
        with self._lock:
            names = ", ".join(DECISIONS.names)
            table: pa.Table = self._connection.sql(
                f"SELECT {names} FROM ({_current()}) "
                f"WHERE decision <> '{NOTE}' OR note IS NOT NULL ORDER BY number"
            ).to_arrow_table()
            write_decisions(self._out, table, scored=self._scored)
            self._entries.clear()
            stores.remove_files(earlier_files(journal_of(self._out)))
            self._undone.clear()
            self.close()
            return len(table)

    def close(self) -> None:
        """Release `out`, so that another review may write to it; an unsaved journal stays."""
        self._lease.release()

    def _insert(self, batch: int, decisions: Sequence[Decision]) -> None:
        rows = [
            (self._number + number, batch, *decision)
            for number, decision in enumerate(decisions, start=1)
        ]
        self._number += len(rows)
        names = ("number", "batch", *Decision._fields)
        columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
        if columns:
            kinds = pa.schema([("number", pa.int64()), ("batch", pa.int64()), *DECISIONS])
            arrow = pa.table({name: list(values) for name, values in columns.items()}, kinds)
            self._connection.register("arrived", arrow)
            self._connection.execute("INSERT INTO decided SELECT * FROM arrived")
            self._connection.unregister("arrived")


def _current(where: str = "") -> str:
    """Return SQL for the last decision about each pair, with the last note.

    Reviewer and time are those of the note only if nothing is decided.
    """
    decided = f"FILTER (decision <> '{NOTE}')"
    who, when = (
        f"coalesce(arg_max({name}, number) {decided}, arg_max({name}, number)) AS {name}"
        for name in ("reviewer", "time")
    )
    return (
        "SELECT uid, caption_number, "
        f"coalesce(arg_max(decision, number) {decided}, '{NOTE}') AS decision, "
        f"(arg_max({{caption: caption}}, number) {decided}).caption AS caption, {who}, {when}, "
        "nullif(arg_max(note, number), '') AS note, "
        f"max(number) AS number FROM decided {where} GROUP BY uid, caption_number"
    )
