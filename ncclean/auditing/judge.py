"""A fallible judge: another's answers on many pairs, or a column of the score table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from ncclean.auditing.answers import ANSWERS, Answers, Counts, is_mismatched, read_answers
from ncclean.auditing.judge_answers import JudgeAnswers
from ncclean.auditing.two_phase import MATCH, MISMATCH, NEITHER
from ncclean.base.formats import threshold_text
from ncclean.errors import InputError
from ncclean.storage.catalog import first_line
from ncclean.storage.quoting import identifier, quoted

_CUT = re.compile(r"(.+?)\s*(<=|>=|<|>)\s*(\S+)")
_NUMBERED, _PLAIN = "judge_by_caption", "judge_by_image"


@dataclass(frozen=True)
class Judge:
    """The answers of a fallible judge, such as a model: `answers` by pair, or else a column `name`.

    `partly` and `cannot_tell` say what such answers count as, as for people.
    """

    name: str
    answers: Answers | None
    partly: Counts
    cannot_tell: Counts

    @classmethod
    def read(cls, options: JudgeAnswers, partly: Counts, cannot_tell: Counts) -> Judge | None:
        """Read the judge that options name; None if they name none."""
        if options.judge_answers is not None:
            answers = read_answers(options.judge_answers)
            return cls(options.judge_answers, answers, partly, cannot_tell)
        if options.judge_column is not None:
            return cls(options.judge_column, None, partly, cannot_tell)
        return None

    def joined(self, connection: duckdb.DuckDBPyConnection, columns: Mapping[str, str]) -> Joined:
        """Prepare a judge's answers for an SQL query over `scores`, whose `columns` have SQL types.

        Raises `InputError` for a column that is missing or has no answers.
        """
        if self.answers is None:
            return _column(connection, columns, self)
        _load(connection, self.answers, self._code)
        number = "coalesce(s.caption_number, 0)" if "caption_number" in columns else "0"
        by_uid = connection.execute(
            f"SELECT s.uid FROM scores s JOIN {_PLAIN} p ON s.uid = p.uid "
            f"LEFT JOIN {_NUMBERED} n ON s.uid = n.uid AND {number} = n.caption_number "
            f"WHERE n.answer IS NULL GROUP BY s.uid HAVING count(DISTINCT {number}) > 1 LIMIT 1"
        ).fetchone()
        if by_uid is not None:
            raise InputError(
                f"{by_uid[0]} has several captions: the judge's answers need `caption_number` "
                "beside `uid`, as sample.parquet has it"
            )
        return Joined(
            "coalesce(n.answer, p.answer)",
            f"LEFT JOIN {_NUMBERED} n ON s.uid = n.uid AND {number} = n.caption_number "
            f"LEFT JOIN {_PLAIN} p ON s.uid = p.uid",
            self.name,
        )

    def _code(self, answer: str) -> int:
        mismatched = is_mismatched(answer, self.partly, self.cannot_tell)
        return NEITHER if mismatched is None else MISMATCH if mismatched else MATCH

    def of_texts(self, column: str) -> str:
        """Return SQL that codes a column of answers, in the words of `ANSWERS` or their numbers."""
        word = f"replace(replace(lower(trim({column})), '_', ' '), '-', ' ')"
        cases = " ".join(
            f"WHEN {quoted(answer)} THEN {self._code(answer)} "
            f"WHEN {quoted(str(key))} THEN {self._code(answer)}"
            for key, answer in enumerate(ANSWERS)
        )
        return f"CASE {word} {cases} ELSE {NEITHER} END"


@dataclass(frozen=True)
class Joined:
    """SQL of a judge's answer on a row of `scores s`: NULL if it has none, after the `joins`."""

    answer: str
    joins: str
    name: str


NOBODY = Joined("NULL::TINYINT", "", "")


def _load(
    connection: duckdb.DuckDBPyConnection, answers: Answers, code: Callable[[str], int]
) -> None:
    """Make the tables of answers by image and by caption."""
    for table, is_plain in ((_NUMBERED, False), (_PLAIN, True)):
        pairs = [(pair, a) for pair, a in answers.by_pair.items() if (pair[1] is None) == is_plain]
        rows = pa.table(
            {
                "uid": pa.array([uid for (uid, _), _ in pairs], pa.string()),
                "caption_number": pa.array([number for (_, number), _ in pairs], pa.int64()),
                "answer": pa.array([code(answer) for _, answer in pairs], pa.int8()),
            }
        )
        connection.register("judge_rows", rows)
        connection.execute(f"CREATE TEMP TABLE {table} AS SELECT * FROM judge_rows")
        connection.unregister("judge_rows")


def _column(
    connection: duckdb.DuckDBPyConnection, columns: Mapping[str, str], judge: Judge
) -> Joined:
    cut = _CUT.fullmatch(judge.name)
    name, side, value = cut.groups() if cut is not None else (judge.name, "", "")
    if name not in columns:
        raise InputError(f"--judge-column: the table has no column {name}")
    column, kind = f"s.{identifier(name)}", columns[name].upper()
    if kind == "BOOLEAN":
        return Joined(_either(column, f"{column} IS NOT NULL"), "", name)
    if kind == "VARCHAR" and cut is None:
        return Joined(judge.of_texts(column), "", name)
    # In DOUBLE, .3 of a FLOAT is larger than .3.
    number_kind = "FLOAT" if kind == "FLOAT" else "DOUBLE"
    score = _Score(connection, name, f"TRY_CAST({column} AS {number_kind})", number_kind)
    if cut is None:
        return score.cut_at_noise_rate()
    try:
        bound = float(value)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise InputError(f"--judge-column: {value} is not a number")
    return score.cut(side, bound)


def _either(condition: str, told: str) -> str:
    return (
        f"CASE WHEN NOT ({told}) THEN {NEITHER} WHEN {condition} THEN {MISMATCH} ELSE {MATCH} END"
    )


@dataclass(frozen=True)
class _Score:
    """A numeric column, which is cut into answers: SQL of the `number`, of SQL type `kind`."""

    connection: duckdb.DuckDBPyConnection
    name: str
    number: str
    kind: str

    def cut(self, side: str, bound: float) -> Joined:
        """Call pairs mismatched on this side (`<`, `<=`, `>`, `>=`) of the bound."""
        told = f"({self.number} IS NOT NULL AND NOT isnan({self.number}))"
        condition = f"{self.number} {side} {bound!r}::{self.kind}"
        if not self._row(f"SELECT count(*) FROM scores s WHERE {told}")[0]:
            raise InputError(f"--judge-column: {self.name} has no numbers")
        return Joined(_either(condition, told), "", f"{self.name}{side}{threshold_text(bound)}")

    def cut_at_noise_rate(self) -> Joined:
        """Cut so that about as many pairs are flagged as the noise probabilities expect.

        Flags the side with the larger values. Neither depends on people's answers, which thus
        remain free to correct the result. Of 0 and 1, 1 is a mismatch.
        """
        n = self.number
        usable = f"s.status = 'ok' AND s.noise_probability IS NOT NULL AND isfinite({n})"
        least, most, others, slope, rate = self._row(
            f"SELECT min({n}), max({n}), count(*) FILTER ({n} NOT IN (0, 1)), "
            f"corr({n}, s.noise_probability), avg(s.noise_probability) FROM scores s WHERE {usable}"
        )
        if (least, most, others) == (0, 1, 0):
            return self.cut(">=", 1.0)
        if slope is None or math.isnan(slope):
            raise InputError(f"--judge-column: {self.name} needs a cut, as in {self.name}<0.3")
        sides = ("<=", "<") if slope < 0 else (">=", ">")
        share = rate if slope < 0 else 1 - rate
        (bound,) = self._row(f"SELECT approx_quantile({n}, {share!r}) FROM scores s WHERE {usable}")
        # They differ if many pairs have the bound itself.
        flagged = self._row(
            f"SELECT {', '.join(f'avg(({n} {s} {bound!r}::{self.kind})::INTEGER)' for s in sides)} "
            f"FROM scores s WHERE {usable}"
        )
        nearest = min(range(2), key=lambda number: abs(flagged[number] - rate))
        return self.cut(sides[nearest], bound)

    def _row(self, sql: str) -> tuple[Any, ...]:
        try:
            return self.connection.execute(sql).fetchall()[0]
        except duckdb.Error as error:
            raise InputError(f"--judge-column {self.name}: {first_line(error)}") from None
