"""A score table with ground truth, and the counts that DuckDB takes in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np

from ncclean.errors import InputError
from ncclean.evaluation.calibration import BINS, Calibration, calibration
from ncclean.evaluation.curves import SortedScores
from ncclean.evaluation.noise_evaluation import (
    NoiseEvaluation,
    RuleEvaluation,
    ScoreFigure,
    evaluate_rule,
    evaluate_score,
    figure_of,
)
from ncclean.evaluation.noise_scores import NoiseScore
from ncclean.rules import Rule
from ncclean.storage.catalog import connect

UNSPECIFIED = "unspecified"  # noise without a kind
OTHER = "other"
_MOST_KINDS = 20


@dataclass(frozen=True)
class TruthTable:
    """The scored pairs of a table whose truth is known, in the view `judged`.

    `pairs` (K + 1,) counts them by kind, clean ones first; `_kind` is the number of a pair's kind.
    `unscored` counts the pairs with a truth but no scores, `unknown` those without a truth.
    `columns` maps all columns to DuckDB's types.
    """

    connection: duckdb.DuckDBPyConnection
    columns: dict[str, str]
    kinds: list[str]
    pairs: np.ndarray
    unscored: int
    unknown: int

    @classmethod
    def open(
        cls, scores: Sequence[str], joined: Sequence[str] = (), memory_limit: str | None = None
    ) -> TruthTable:
        """Raises `InputError` if the table has no truth, or cannot be read."""
        beside = {f"joined_{number}": [path] for number, path in enumerate(joined)}
        connection = connect(scores, memory_limit, beside=beside)
        table = "scores"
        for number, path in enumerate(joined):
            table = _join(connection, table, number, path)
        columns = _columns(connection, table)
        if "is_noisy" not in columns:
            raise InputError(f"{scores[0]} has no column is_noisy: no truth to compare with")
        kind = "noise_kind::VARCHAR" if "noise_kind" in columns else "NULL::VARCHAR"
        ok = "status = 'ok'" if "status" in columns else "true"
        noisy = f"FROM {table} WHERE is_noisy::BOOLEAN AND {ok}"
        counts = connection.execute(
            f"SELECT coalesce({kind}, '{UNSPECIFIED}') AS kind, count(*) AS pairs {noisy} "
            "GROUP BY 1 ORDER BY pairs DESC, kind"
        ).fetchall()
        kinds = [str(name) for name, _ in counts[:_MOST_KINDS]]
        if len(counts) > _MOST_KINDS:
            kinds = [*kinds[:-1], OTHER]
        connection.execute(
            "CREATE TEMP VIEW judged AS SELECT *, (CASE WHEN is_noisy::BOOLEAN THEN "
            # A kind that is not listed counts as the last one, `other`.
            f"coalesce(list_position({_listed(kinds)}, coalesce({kind}, '{UNSPECIFIED}')), "
            f"{len(kinds)}) ELSE 0 END)::TINYINT AS _kind "
            f"FROM {table} WHERE is_noisy IS NOT NULL AND {ok}"
        )
        judged = dict(
            connection.execute("SELECT _kind, count(*) FROM judged GROUP BY 1").fetchall()
        )
        total, with_truth = connection.execute(
            "SELECT count(*), count(is_noisy) FROM scores"
        ).fetchall()[0]
        if not with_truth:
            raise InputError(
                f"{scores[0]} holds no truth: is_noisy is null in every row. Score shards that "
                "`ncclean inject-noise` or `ncclean synth` wrote"
            )
        pairs = np.array([judged.get(number, 0) for number in range(len(kinds) + 1)])
        return cls(
            connection, columns, kinds, pairs, with_truth - int(pairs.sum()), total - with_truth
        )

    def noise_rate(self) -> tuple[float, str]:
        """The share of pairs to flag where a score has no threshold of its own, and its source."""
        if "noise_probability" in self.columns:
            mean = self._rows("SELECT avg(noise_probability) FROM judged")[0][0]
            if mean is not None:
                return float(mean), "the mean noise_probability"
        return float(self.pairs[1:].sum() / self.pairs.sum()), "the true share of noise"

    def read(self, score: NoiseScore) -> tuple[SortedScores, int]:
        """The sorted noise scores of the pairs that have one, and how many have none.

        Raises `InputError` for a column that holds no numbers.
        """
        name = _identifier(score.column)
        is_float = self.columns[score.column] == "FLOAT"
        value = name if is_float else f"{name}::DOUBLE"
        arrays = self._execute(
            f"SELECT _kind, {value} AS score FROM judged "
            f"WHERE {name} IS NOT NULL AND NOT isnan({value})"
        ).fetchnumpy()
        values = np.asarray(arrays["score"])
        missing = int(self.pairs.sum()) - len(values)
        values = -values if score.sign < 0 else values
        return SortedScores.of(values, np.asarray(arrays["_kind"])), missing

    def evaluate(
        self,
        scores: Sequence[NoiseScore],
        rules: Sequence[Rule],
        on_score: Callable[[int], None] = lambda number: None,
    ) -> tuple[NoiseEvaluation, list[ScoreFigure]]:
        """Every score and rule against the truth, and the curves to draw of each score.

        A column is read alone, as arrays, to be sorted: 10 million pairs take 0.7 GB. Scores
        without a value are left out; `on_score` receives the number of each, from 1.
        """
        rate, source = self.noise_rate()
        evaluations, figures = [], []
        for number, score in enumerate(scores, start=1):
            on_score(number)
            values, unscored = self.read(score)
            if not len(values.values):
                continue
            evaluations.append(evaluate_score(values, score, self.kinds, rate, source, unscored))
            figures.append(figure_of(values, score, self.kinds))
        evaluation = NoiseEvaluation(
            clean=int(self.pairs[0]),
            noisy=dict(zip(self.kinds, self.pairs[1:].tolist(), strict=True)),
            unscored=self.unscored,
            unknown=self.unknown,
            noise_rate=rate,
            noise_rate_source=source,
            scores=evaluations,
            rules=self.rules(rules),
            calibration=self.calibration(),
        )
        return evaluation, figures

    def rules(self, rules: Sequence[Rule]) -> list[RuleEvaluation]:
        """Every rule's operating point, over the pairs for which it is not null.

        Raises `InputError` for a rule that is not a condition on the table's columns.
        """
        evaluations = []
        for rule in rules:
            # One at a time, so that an error names its rule.
            rows = self._rows(
                f"SELECT _kind, count(*), count_if(flag) FROM "
                f"(SELECT _kind, ({rule.condition}\n)::BOOLEAN AS flag FROM judged) "
                "WHERE flag IS NOT NULL GROUP BY 1",
                f"the rule {rule.title!r}",
            )
            counts = np.zeros((len(self.kinds) + 1, 2), dtype=np.int64)
            for kind, pairs, flagged in rows:
                counts[kind] = pairs, flagged
            if counts.any():
                evaluations.append(evaluate_rule(rule, counts[:, 0], counts[:, 1], self.kinds))
        return evaluations

    def calibration(self) -> Calibration | None:
        """Of `noise_probability`; None where it is missing."""
        if "noise_probability" not in self.columns:
            return None
        rows = self._rows(
            f"SELECT least(floor(p * {BINS}), {BINS - 1})::INTEGER, _kind, count(*), sum(p), "
            "sum(p * p) FROM (SELECT noise_probability::DOUBLE AS p, _kind FROM judged "
            "WHERE noise_probability BETWEEN 0 AND 1) GROUP BY 1, 2"
        )
        if not rows:
            return None
        sums = np.zeros((3, BINS, len(self.kinds) + 1))
        for place, kind, *cells in rows:
            sums[:, place, kind] = cells
        return calibration(sums[0].astype(np.int64), sums[1], sums[2], self.kinds)

    def _rows(self, sql: str, what: str = "the table") -> list[tuple[Any, ...]]:
        return self._execute(sql, what).fetchall()

    def _execute(self, sql: str, what: str = "the table") -> duckdb.DuckDBPyConnection:
        try:
            # A rule must not smuggle in a second statement.
            statements = self.connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise InputError(f"{what} is not a condition")
            return self.connection.execute(sql)
        except duckdb.Error as error:
            raise InputError(f"{what} cannot be evaluated: {str(error).splitlines()[0]}") from error


def _join(connection: duckdb.DuckDBPyConnection, table: str, number: int, path: str) -> str:
    """A view of `table` with the new columns of the view `joined_<number>`, matched by uid.

    Of several rows with one uid, one is used. Raises `InputError` unless both have a uid.
    """
    columns, joined = _columns(connection, table), _columns(connection, f"joined_{number}")
    if "uid" not in columns or "uid" not in joined:
        raise InputError(f"{path} cannot be joined to the scores: both need a column uid")
    added = "".join(f", j.{_identifier(name)}" for name in joined if name not in columns)
    connection.execute(
        f"CREATE TEMP VIEW with_{number} AS SELECT s.*{added} FROM {table} s LEFT JOIN "
        f"(SELECT DISTINCT ON (uid) * FROM joined_{number}) j ON s.uid = j.uid"
    )
    return f"with_{number}"


def _columns(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, str]:
    """Names and types."""
    described = connection.execute(f"DESCRIBE {table}").fetchall()
    return {str(row[0]): str(row[1]) for row in described}


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Sequence[str]) -> str:
    """The names as a list in SQL."""
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
    return f"[{quoted}]::VARCHAR[]"
