"""Combine people's decisions for a selection: from several files, the latest about each pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from ncclean.base.schema import DECISIONS
from ncclean.data.fingerprints import Fingerprints
from ncclean.storage.decisions import KINDS, NOTE, Decision, Pair, latest, read_decisions

_LISTED = 20
DROPPED = "decision"  # the reason of a pair that a person dropped


@dataclass(frozen=True)
class Conflict:
    """A pair on which files of decisions differ: each decision and its reviewer, in order of time.

    The last one counts.
    """

    uid: str
    caption_number: int
    decisions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Decisions:
    """The review decision that counts for each pair, and the pairs on which files differ.

    `conflicts` counts these, and `listed` has the first of them.
    """

    by_pair: dict[Pair, Decision]
    conflicts: int = 0
    listed: tuple[Conflict, ...] = ()

    @classmethod
    def read(
        cls, paths: Sequence[str], has_notes: bool = False, scored: Fingerprints | None = None
    ) -> Decisions:
        """Read files of decisions, and the journals of reviews beside them.

        If files differ about a pair, the later decision counts, whatever the order of the files.
        With `has_notes`, pairs with only a note are included. `scored` is as in `read_decisions`.
        """
        all_of: dict[Pair, list[Decision]] = {}
        for path in dict.fromkeys(paths):
            for decision in read_decisions(path, scored):
                if has_notes or decision.decision != NOTE:
                    all_of.setdefault(decision.pair, []).append(decision)
        conflicts = []
        for pair, several in all_of.items():
            several.sort(key=lambda decision: decision.time)
            if len({(one.decision, one.caption) for one in several}) > 1:
                conflicts.append(
                    Conflict(*pair, tuple((one.decision, one.reviewer) for one in several))
                )
        by_pair = {pair: latest(several) for pair, several in all_of.items()}
        return cls(by_pair, len(conflicts), tuple(conflicts[:_LISTED]))

    def counts(self, connection: duckdb.DuckDBPyConnection) -> tuple[dict[str, int], int]:
        """Count decisions on pairs in the view `pairs` of a connection by kind, and all others."""
        self.create_table(connection)
        rows = connection.execute(
            "SELECT decision, count(*) FROM decided SEMI JOIN pairs ON uid = decided_uid "
            "AND coalesce(caption_number, 0) = decided_number GROUP BY 1"
        ).fetchall()
        counts = dict(rows)
        elsewhere = len(self.by_pair) - sum(counts.values())
        return {kind: counts[kind] for kind in KINDS if kind in counts}, elsewhere

    def create_table(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Create the table `decided` of the decisions in a connection."""
        rows = [decision._asdict() for decision in self.by_pair.values()]
        connection.register("decisions_read", pa.Table.from_pylist(rows, DECISIONS))
        connection.execute(
            "CREATE TEMP TABLE decided AS SELECT uid AS decided_uid, "
            "caption_number AS decided_number, decision, caption AS corrected FROM decisions_read"
        )
        connection.unregister("decisions_read")
