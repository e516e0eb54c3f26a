"""Read a score table for an audit: strata, a draw from each, and counts by rule.

Only counts and the rows of drawn or judged pairs leave DuckDB, so a table of any size takes
bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ncclean.auditing.answers import Pair
from ncclean.auditing.judge import NOBODY, Judge
from ncclean.auditing.strata import BINS_PER_LOGIT, FIRST_BIN, LAST_BIN, Strata, strata_of
from ncclean.base.rules import RULES, Rule
from ncclean.base.schema import OPTIONAL_COLUMNS, PLACE_COLUMNS, SCORE_COLUMNS
from ncclean.data.selection import MENDED
from ncclean.errors import InputError
from ncclean.storage.catalog import columns_of, connect, first_line
from ncclean.storage.joined import PLACE
from ncclean.storage.quoting import finite

_TELLS = "near_miss_probability"
_NEEDED = ("uid", "shard", "key", "row", "status", "similarity", "noise_probability")
_P = "noise_probability::DOUBLE"


@dataclass(frozen=True)
class Counts:
    """Numbers of pairs by S strata and by whether a rule flags them, (S, 2), flagged in column 1.

    `expected` (S, 2) is the sum of their noise probabilities, `judged` (S, 2, 3) counts the judge's
    answers: match, mismatch, neither.
    """

    pairs: np.ndarray
    expected: np.ndarray
    judged: np.ndarray


@dataclass(frozen=True)
class AuditTable:
    """A score table to audit: the view `pairs` of `connection`, with the pairs that can be drawn.

    These have scores and a noise probability. `rules` are the detection rules whose columns the
    table has; if `has_selection`, the last one flags pairs missing from the view `selection`.
    `judge` is the judge's name, None without one; its answers are the column `judge`, NULL if it
    has none.
    """

    connection: duckdb.DuckDBPyConnection
    rules: tuple[Rule, ...]
    has_selection: bool
    judge: str | None

    @classmethod
    def open(
        cls,
        paths: Sequence[str],
        selection: str | None = None,
        memory_limit: str | None = None,
        judge: Judge | None = None,
    ) -> AuditTable:
        """Open score files to audit. Raises `InputError` if they lack noise probabilities."""
        beside = {"selection": [selection]} if selection is not None else {}
        connection = connect(paths, memory_limit, beside=beside, place=PLACE)
        columns = columns_of(connection, "scores")
        for name in _NEEDED:
            if name not in columns:
                raise InputError(f"{paths[0]} is not a score table: it has no column {name}")
        # If no pair has a probability, the model cannot tell words, and none is shown.
        told = f"CASE WHEN s.{_TELLS} IS NOT NULL THEN s.{{0}} END AS {{0}}"
        words = ("suspect_word", "better_word") if _TELLS in columns else ()
        selected = ", ".join(
            (told if column.name in words else "s.{}").format(column.name)
            if column.name in columns
            else f"NULL::{column.sql_type} AS {column.name}"
            for column in (*SCORE_COLUMNS, *OPTIONAL_COLUMNS)
            if column.name != "caption_number"
        )
        number = "coalesce(s.caption_number, 0)" if "caption_number" in columns else "0"
        judging = NOBODY if judge is None else judge.joined(connection, columns)
        connection.execute(
            f"CREATE TEMP VIEW pairs AS SELECT {selected}, {number}::SMALLINT AS caption_number, "
            f"s.{PLACE} AS place, {judging.answer} AS judge FROM scores s {judging.joins} "
            f"WHERE s.status = 'ok' AND {finite('s.noise_probability')} IS NOT NULL"
        )
        rules = tuple(rule for rule in RULES if set(rule.columns) <= set(columns))
        if selection is not None:
            rules = (*rules, _selection_rule(connection, selection))
        table = cls(connection, rules, selection is not None, judging.name or None)
        if not table._rows("SELECT 1 FROM pairs LIMIT 1"):
            raise InputError(
                f"{paths[0]} has no noise probabilities, by which an audit draws: they need blocks "
                "of at least two pairs"
            )
        return table

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> AuditTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def strata(self) -> Strata:
        """Return the strata from which the table's pairs are sampled."""
        # For logarithms of 0, or of values that a 32-bit float cannot distinguish from 1.
        bins = self._rows(
            f"""SELECT CASE WHEN {_P} < 1.2e-7 THEN {FIRST_BIN}
              WHEN {_P} > 1 - 1.2e-7 THEN {LAST_BIN - 1}
              ELSE floor({BINS_PER_LOGIT} * ln({_P} / (1 - {_P})))::INTEGER END AS bin, count(*)
            FROM pairs GROUP BY bin"""
        )
        counts = np.zeros(LAST_BIN - FIRST_BIN)
        for bin_, pairs in bins:
            counts[min(max(bin_, FIRST_BIN), LAST_BIN - 1) - FIRST_BIN] += pairs
        return strata_of(counts)

    def draw(
        self,
        bounds: np.ndarray,
        wanted: np.ndarray,
        seed: int,
        *,
        by_judge: bool = False,
        without: Iterable[Pair] = (),
    ) -> tuple[pa.Table, list[int]]:
        """Draw `wanted` (S,) pairs from each stratum by a hash of seed and uid.

        `by_judge` splits each stratum in three by the judge's answer; pairs that it did not judge
        are in none. `without` are pairs not to draw. Returns the rows, with `stratum` and
        `place_in_stratum`, and the pairs that each stratum has.
        """
        stratum_of, among = stratum_sql(bounds), "true"
        if by_judge:
            stratum_of, among = f"3 * ({stratum_of}) + judge", "judge IS NOT NULL"
        without = set(without)
        plain = [uid for uid, number in without if number is None]
        numbered = [{"uid": uid, "n": number} for uid, number in without if number is not None]
        parameters = []
        for left_out, value in (
            (plain, "uid"),
            (numbered, "{'uid': uid, 'n': caption_number::BIGINT}"),
        ):
            if left_out:
                among += f" AND {value} NOT IN (SELECT unnest(?))"
                parameters.append(left_out)
        most = int(max(wanted.max(), 1))
        name = f"concat_ws('/', uid, caption_number, {int(seed)})"
        drawn = self._rows(
            f"""SELECT stratum, count(*), arg_min(place, (hashed, place), {most}) FROM (
              SELECT {stratum_of} AS stratum, place,
                md5_number_lower({name}) AS hashed FROM pairs WHERE {among}) GROUP BY stratum""",
            parameters or None,
        )
        pairs = [0] * len(wanted)
        places: dict[int, tuple[int, int]] = {}
        for stratum, count, taken in drawn:
            pairs[stratum] = count
            for number, place in enumerate(taken[: wanted[stratum]]):
                places[place] = stratum, number
        columns = (
            "place", "uid", "shard", "row", "caption_number", "key", "noise_probability", "text",
            "url", "width", "height", "status", "error", "suspect_word", "better_word", "judge",
            *PLACE_COLUMNS,
        )  # fmt: skip
        rows = self._table(
            f"SELECT {', '.join(columns)} FROM pairs WHERE place IN (SELECT unnest(?::BIGINT[]))",
            [list(places)],
        )
        of_rows = [places[place] for place in rows.column("place").to_pylist()]
        rows = rows.drop_columns(["place"])
        for at, column in enumerate(("stratum", "place_in_stratum")):
            values = pa.array([place[at] for place in of_rows], pa.int32())
            rows = rows.append_column(column, values)
        return rows.sort_by([("stratum", "ascending"), ("place_in_stratum", "ascending")]), pairs

    def counts(self, bounds: np.ndarray) -> tuple[Counts, ...]:
        """Count the pairs that each detection rule flags, in one pass over the table."""
        flags = ", ".join(f"{_flag(rule)} AS f{n}" for n, rule in enumerate(self.rules))
        rows = self._rows(
            f"SELECT {stratum_sql(bounds)} AS stratum, judge, {flags}, count(*), sum({_P}) "
            "FROM pairs GROUP BY ALL"
        )
        shape = (len(self.rules), len(bounds) + 1, 2)
        pairs, expected, judged = np.zeros(shape), np.zeros(shape), np.zeros((*shape, 3))
        for stratum, judge, *of_rules, count, probability in rows:
            for number, flag in enumerate(map(int, of_rules)):
                pairs[number, stratum, flag] += count
                expected[number, stratum, flag] += probability
                if judge is not None:
                    judged[number, stratum, flag, judge] += count
        return tuple(Counts(*cell) for cell in zip(pairs, expected, judged, strict=True))

    def judged(self, bounds: np.ndarray, uids: Iterable[str]) -> pa.Table:
        """Return the table's rows with these uids, with the judge's answer and the stratum.

        They also have the scores, and whether each detection rule flags them.
        """
        flags = ", ".join(f"{_flag(rule)} AS f{n}" for n, rule in enumerate(self.rules))
        return self._table(
            "SELECT uid, caption_number, text, noise_probability, similarity, neg_clip_loss, "
            f"calibration_group, judge, {stratum_sql(bounds)} AS stratum, {flags} FROM pairs "
            "WHERE uid IN (SELECT unnest(?)) ORDER BY place",
            [list(uids)],
        )

    def _rows(self, sql: str, parameters: object = None) -> list[tuple[Any, ...]]:
        try:
            return self.connection.execute(sql, parameters).fetchall()
        except duckdb.Error as error:
            raise InputError(f"the score table cannot be read: {first_line(error)}") from error

    def _table(self, sql: str, parameters: object) -> pa.Table:
        """Rows of pairs. Raises `InputError` if two of them have one uid: answers go by it."""
        try:
            rows = self.connection.sql(sql, params=parameters).to_arrow_table()
        except duckdb.Error as error:
            raise InputError(f"the score table cannot be read: {first_line(error)}") from error
        texts = rows.group_by(["uid", "caption_number"]).aggregate([("text", "count_distinct")])
        for uid, count in zip(texts["uid"], texts["text_count_distinct"], strict=True):
            if count.as_py() > 1:
                raise InputError(
                    f"{uid} is the uid of pairs with other captions, by which answers could not be "
                    "told apart, as in tables of shards with the same names: audit one table"
                )
        return rows


def stratum_sql(bounds: np.ndarray) -> str:
    """Return SQL for the stratum of a pair: how many of `bounds` its noise probability reaches."""
    # With an exponent a literal is a double; without, a decimal, which converts digit by digit.
    return " + ".join(["0", *(f"({_P} >= {bound:.17e})::INTEGER" for bound in bounds)])


def _flag(rule: Rule) -> str:
    return f"coalesce({rule.condition}, false)"


def _selection_rule(connection: duckdb.DuckDBPyConnection, path: str) -> Rule:
    """Return the rule that flags pairs not kept by a selection, or kept with another caption.

    Answers are about the caption of the table.
    """
    columns = columns_of(connection, "selection")
    if not {"shard", "key", "weight"} <= set(columns):
        raise InputError(f"{path} is not a selection that `ncclean select` wrote")
    named = ", ".join(n for n in ("uid", "shard", "key", "caption_number") if n in columns)
    unchanged = f"WHERE {MENDED} IS NULL" if MENDED in columns else ""
    kept = f"SELECT ({named}) FROM selection {unchanged}"
    return Rule("dropped", f"({named}) NOT IN ({kept})", short="dropped")
