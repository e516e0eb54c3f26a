"""The query of a selection: the reason why each pair is dropped, and its counts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from ncclean import __version__
from ncclean.base.output_mark import mark
from ncclean.base.schema import PLACE_COLUMNS
from ncclean.data.selection import CAPTION_NUMBER, CAPTION_RANK, MENDED
from ncclean.errors import InputError
from ncclean.selection.best_fraction import BestFraction, find_best_fraction
from ncclean.selection.chain_steps import (
    among,
    draw_pairs,
    find_duplicates,
    find_over_cap,
    find_worse_captions,
    image_of,
)
from ncclean.selection.decided import DROPPED, Decisions
from ncclean.selection.drop_parts import count_mended, part_columns
from ncclean.selection.policy import Policy
from ncclean.storage.catalog import columns_of, first_line
from ncclean.storage.expressions import missing_column
from ncclean.storage.joined import PLACE, PLACED, JoinedScores
from ncclean.storage.quoting import finite, identifier, quoted

# Optional columns of the table: those counted by the summary, used to compare duplicates, and kept
# in the selection.
_READ_IF_THERE = (
    "noise_probability", "ncu_split", "similarity", "caption_number", *PLACE_COLUMNS
)  # fmt: skip


class SelectionQuery:
    """The steps of one selection, on one connection to a score table."""

    def __init__(
        self,
        scores: JoinedScores,
        policy: Policy,
        has_dedup: bool,
        decisions: Decisions | None = None,
    ) -> None:
        self._connection = scores.connection
        self._partners = scores.partners
        self._policy = policy
        self._decisions = decisions
        columns = {name: scores.names.named(name) for name in policy.columns()}
        for name, option in policy.columns().items():
            if columns[name] is None:
                self._refuse(option, name, scores)
        self._weights = columns.get(policy.weights or "")
        self._where = (
            scores.expression(policy.where, "--where", is_condition=True) if policy.where else None
        )
        self._score = scores.expression(policy.score, "--score") if policy.score else None
        self._balance = (
            scores.expression(policy.balance_by, "--balance-by") if policy.balance_by else None
        )
        optional = (self._where, self._score, self._balance)
        expressions = [one for one in optional if one is not None]
        read = [name for name in columns.values() if name is not None]
        scores.prepare([*read, *_READ_IF_THERE], expressions, is_placed=True)
        self._kind = columns_of(self._connection, "scores")
        # Tables written before 0.4 lack them.
        self._places = "".join(f", {name}" for name in PLACE_COLUMNS if name in self._kind)
        (decisions or Decisions({})).create_table(self._connection)
        self._score_type = "DOUBLE"
        self._create_candidates()
        self._has_captions = bool(self._one("SELECT max(number) FROM candidates")[0])
        # Each step reads the chain of those before it.
        self._duplicates = self._worse_captions = self._over_cap = False
        self._best_of: BestFraction | None = None
        self._drawn: int | None = None
        connection = self._connection
        self._duplicates = has_dedup and find_duplicates(connection, policy)
        if policy.best_caption:
            self._worse_captions = find_worse_captions(connection, self._chain())
        self._best_of = self._find_best()
        if self._balance is not None:
            self._over_cap = find_over_cap(connection, self._chain(), policy)
        if policy.sample is not None:
            self._drawn = draw_pairs(connection, self._chain(), policy)

    @property
    def has_scored(self) -> bool:
        """Whether any pair of the table has scores."""
        scored = self._connection.execute("SELECT 1 FROM candidates WHERE status = 'ok' LIMIT 1")
        return scored.fetchone() is not None

    def write(self, aside: Path, recorded: Mapping[str, str]) -> dict[str, Any]:
        """Write the kept pairs to the file `aside`; return the fields of the summary except `out`.

        Fields that are `recorded` go to its metadata.
        """
        policy = json.dumps(self._policy.to_json())
        fields = "".join(f", {name}: {quoted(value)}" for name, value in recorded.items())
        columns = "uid, shard, key, weight, split"
        if self._policy.drop_parts or self._decisions is not None:
            columns += f", caption AS {MENDED}"
        columns += self._places
        query = f"SELECT * FROM ({self._chain()}) WHERE reason IS NULL"
        if self._has_captions:
            columns += f", number AS {CAPTION_NUMBER}, {CAPTION_RANK}"
            query = f"""SELECT *, (row_number() OVER (PARTITION BY {image_of()}
                ORDER BY goodness DESC NULLS LAST, number) - 1)::SMALLINT AS {CAPTION_RANK}
                FROM ({query})"""
        drawn = ""
        if self._drawn is not None:
            drawn = "JOIN draws USING (place), range(draws.count) AS copies"
        rows = f"SELECT {columns} FROM ({query}) {drawn}"
        order = "" if _is_one_pass(self._connection, rows) else "ORDER BY place"
        self._connection.execute(
            f"COPY ({rows} {order}) TO {quoted(str(aside))} "
            "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, "
            f"KV_METADATA {{policy: {quoted(policy)}, ncclean_version: {quoted(__version__)}, "
            f"made_by: {quoted(mark('select'))}{fields}}})"
        )
        return self._summary()

    @staticmethod
    def _refuse(option: str, name: str, scores: JoinedScores) -> None:
        """Raise `InputError` for a missing column."""
        columns = scores.names.types
        if {"weight", "split"} <= set(columns):
            raise InputError(
                "this is a selection that `select` wrote: name the score table that it came from"
            )
        raise InputError(f"{option}: {missing_column(name, columns)}")

    def _create_candidates(self) -> None:
        """Create the view `candidates`: every row with the values that the filters read."""
        policy = self._policy
        where = f"coalesce(({self._where.sql})::BOOLEAN, false)" if self._where else "true"
        weight = f"{identifier(self._weights) if self._weights else policy.weight()}::FLOAT"
        goodness = finite(self._or_null("similarity", "FLOAT"))
        noise = self._or_null("noise_probability", "FLOAT")
        balance = f"({self._balance.sql})" if self._balance is not None else "NULL"
        if self._score is not None:
            # Floats keep their type: ties of 32 bits are ties. True and false are 1 and 0, and
            # unsigned integers have no negative ones.
            self._score_type = "FLOAT" if self._score.kind == "FLOAT" else "DOUBLE"
            value = f"({self._score.sql})::{self._score_type}"
            goodness = policy.goodness(value) or goodness
        try:
            self._connection.execute(
                "CREATE TEMP VIEW policy_candidates AS SELECT "
                f"{PLACE} AS place, uid, shard, key, row, status, "
                f"coalesce({self._or_null('caption_number', 'SMALLINT')}, 0) AS number, "
                f"{part_columns(policy.part_threshold if policy.drop_parts else None, noise)}, "
                f"{self._or_null('ncu_split', 'VARCHAR')} AS split, "
                f"{goodness} AS goodness, "
                f"{balance} AS balance, "
                f"{where} AS passes_where, "
                f"coalesce({policy.rule() or 'true'}, false) AS passes_rule, "
                f"{weight} AS weight{self._places} FROM {PLACED} AS scores"
            )
            self._connection.execute(
                f"CREATE TEMP VIEW candidates AS {_with_decisions()}"
                if self._decisions is not None
                else "CREATE TEMP VIEW candidates AS SELECT *, "
                "NULL::VARCHAR AS decision FROM policy_candidates"
            )
            self._connection.execute("SELECT * FROM candidates LIMIT 0")
        except duckdb.Error as error:
            option = "--where" if policy.where else "the policy"
            raise InputError(f"{option}: {first_line(error)}") from error

    def _or_null(self, name: str, kind: str) -> str:
        return identifier(name) if name in self._kind else f"NULL::{kind}"

    def _chain(self, with_ties: bool = False) -> str:
        """Return SQL for the candidates with the reason why each is dropped, null for the kept.

        `with_ties` keeps all pairs equal to the last one of a fraction, which reads no uids.
        """
        policy = self._policy
        is_duplicate = (
            f"WHEN {among('duplicates')} THEN 'near-duplicate'" if self._duplicates else ""
        )
        score = ""
        if policy.score is not None:
            is_column = self._score is not None and self._score.column is not None
            name = quoted(f"no {policy.score if is_column else 'score'}")
            score = f"WHEN goodness IS NULL THEN {name} "
            bound = policy.bound()
            if bound is not None:
                bound_sql = f"{bound!r}::{self._score_type}"  # .7 of 32 bits is below that of 64
                score += f"WHEN goodness < {bound_sql} THEN 'threshold' "
        if self._worse_captions:
            score += f"WHEN {among('worse_captions')} THEN 'worse caption' "
        if self._best_of is not None:
            kept = self._best_of.or_equal if with_ties else self._best_of.exactly
            score += f"WHEN NOT ({kept}) THEN 'keep-fraction' "
        if self._over_cap:
            score += f"WHEN {among('over_cap')} THEN 'over cap' "
        if self._drawn is not None:
            score += f"WHEN NOT {among('draws')} THEN 'not drawn' "
        is_left = f"{among('draws')}" if self._drawn is not None else "true"
        return f"""SELECT *, CASE
            WHEN status IS DISTINCT FROM 'ok' THEN coalesce(status, 'no status')
            WHEN decision = 'drop' THEN {quoted(DROPPED)}
            WHEN decision IS NOT NULL THEN CASE WHEN NOT {is_left} THEN 'not drawn' END
            WHEN NOT passes_where THEN 'where' {is_duplicate}
            WHEN NOT passes_rule THEN {quoted(policy.method or "")}
            WHEN len(kept_parts) = 0 THEN 'no part left'
            {score} WHEN weight IS NULL OR isnan(weight) THEN 'no weight' END AS reason
            FROM candidates"""

    def _find_best(self) -> BestFraction | None:
        """Find the best `keep_fraction` of the pairs that earlier filters leave."""
        fraction = self._policy.keep_fraction
        if fraction is None:
            return None
        columns = "uid, place, goodness"
        # Pairs kept by a person are not part of the fraction.
        left = (
            f"(SELECT {columns} FROM ({self._chain()}) WHERE reason IS NULL AND decision IS NULL)"
        )
        return find_best_fraction(self._connection, left, fraction)

    def _summary(self) -> dict[str, Any]:
        # Later filters depend on which of the ties are omitted.
        with_ties = not self._over_cap and self._drawn is None
        rows = self._connection.execute(
            "SELECT reason, count(*), sum(noise_probability), sum(weight), min(weight), "
            f"count(*) FILTER (split = 'forget') FROM ({self._chain(with_ties)}) GROUP BY reason"
        ).fetchall()
        by_reason = {row[0]: row[1:] for row in rows}
        if with_ties and self._best_of is not None and self._best_of.ties_dropped is not None:
            self._move_ties(by_reason, self._best_of.ties_dropped)
        kept, expected, weights, least, forget = by_reason.pop(None, (0, None, 0.0, 0.0, 0))
        if least is not None and least < 0:
            raise InputError(
                f"--weights {self._policy.weights}: {least:g} is negative; weights must not be"
            )
        order = sorted(by_reason, key=lambda reason: (-by_reason[reason][0], reason))
        expected_dropped = [
            by_reason[reason][1] for reason in order if by_reason[reason][1] is not None
        ]
        has_probability = expected is not None or bool(expected_dropped)
        return {
            "rows": kept + sum(fields[0] for fields in by_reason.values()),
            "kept": kept,
            "dropped": sum(fields[0] for fields in by_reason.values()),
            "dropped_by_reason": {reason: by_reason[reason][0] for reason in order},
            "expected_mismatched_kept": (expected or 0.0) if has_probability else None,
            "expected_mismatched_dropped": sum(expected_dropped) if has_probability else None,
            "weight_sum": weights or 0.0,
            "forget": forget,
            "joined": self._partners,
            **self._count_decided(),
            "drawn": self._drawn,
            **(count_mended(self._connection, self._chain()) if self._policy.drop_parts else {}),
        }

    def _count_decided(self) -> dict[str, Any]:
        if self._decisions is None:
            return {}
        counts = self._connection.execute(
            "SELECT decision, count(*) FROM candidates WHERE decision IS NOT NULL "
            "GROUP BY 1 ORDER BY 1"
        ).fetchall()
        decided_here = self._one(
            "SELECT count(DISTINCT (uid, number)) FROM candidates WHERE decision IS NOT NULL"
        )[0]
        return {
            "decided": dict(counts),
            "decided_elsewhere": len(self._decisions.by_pair) - decided_here,
            "decided_alike": self._one(
                "SELECT coalesce(sum(pairs), 0)::BIGINT FROM (SELECT count(*) AS pairs "
                "FROM candidates WHERE decision IS NOT NULL AND status = 'ok' "
                "GROUP BY uid, number) WHERE pairs > 1"
            )[0],
            "conflicts": self._decisions.conflicts,
            "conflicting": self._decisions.listed,
        }

    def _move_ties(self, by_reason: dict[Any, tuple[Any, ...]], condition: str) -> None:
        """Move the dropped ties from the kept to the dropped counts.

        Counting the few ties is faster than a second pass over the table with their uids.
        """
        pairs, wrong, weight, forget = self._one(
            "SELECT count(*), coalesce(sum(noise_probability), 0), coalesce(sum(weight), 0), "
            f"count(*) FILTER (split = 'forget') FROM ({self._chain(True)}) "
            f"WHERE reason IS NULL AND decision IS NULL AND {condition}"
        )

        def moved(fields: tuple[Any, ...], sign: int) -> tuple[Any, ...]:
            count, expected, weights, least, forgotten = fields
            if expected is not None or wrong:
                expected = (expected or 0.0) + sign * wrong
            weights += sign * weight
            return count + sign * pairs, expected, weights, least, forgotten + sign * forget

        dropped = by_reason.get("keep-fraction", (0, None, 0.0, None, 0))
        by_reason["keep-fraction"] = moved(dropped, 1)
        by_reason[None] = moved(by_reason[None], -1)

    def _one(self, sql: str) -> tuple[Any, ...]:
        rows: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        return rows[0]


def _is_one_pass(connection: duckdb.DuckDBPyConnection, sql: str) -> bool:
    """Whether DuckDB only reads and filters, which keeps the order of the input.

    Joins and windows lose it: those of the policy, of decisions and of the user's SQL.
    """
    plans = connection.execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
    operators = set(re.findall(r'"name": *"(\w+) *"', plans[0][1]))
    return operators <= {"PROJECTION", "FILTER", "READ_PARQUET"}


def _with_decisions() -> str:
    """Return SQL for the candidates with people's decisions.

    A pair kept by a person has a weight, its whole or corrected caption, no forget mark, and no
    expected noise. A dropped one is not the best of its near-duplicates.
    """
    return """SELECT * REPLACE (
          coalesce(corrected, CASE WHEN NOT is_kept THEN caption END) AS caption,
          CASE WHEN is_kept THEN range(1, parts + 1) ELSE kept_parts END AS kept_parts,
          CASE WHEN is_kept THEN 0 ELSE noise_probability END AS noise_probability,
          passes_where AND decision IS DISTINCT FROM 'drop' OR is_kept AS passes_where,
          CASE WHEN is_kept AND split = 'forget' THEN 'retain' ELSE split END AS split,
          CASE WHEN is_kept AND (weight IS NULL OR isnan(weight) OR weight = 0) THEN 1
            ELSE weight END AS weight
        ) FROM (
          SELECT *, coalesce(decision IN ('keep', 'correct'), false) AS is_kept
          FROM policy_candidates LEFT JOIN decided
            ON uid = decided_uid AND number = decided_number)"""
