"""Evaluate the scores and rules of a table with ground truth, from counts by DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np

from ncclean.base.figure_files import write_figure
from ncclean.base.progress import SILENT, Progress
from ncclean.errors import InputError
from ncclean.evaluation.detection import SortedScores
from ncclean.evaluation.figures import draw_noise
from ncclean.evaluation.noise_choice import NoiseChoice, NoiseScore
from ncclean.evaluation.noise_evaluation import (
    ALL,
    BINS,
    Calibration,
    NoiseEvaluation,
    RuleEvaluation,
    ScoreFigure,
    calibration,
    evaluate_rule,
    evaluate_score,
    figure_of,
)
from ncclean.storage.catalog import first_line
from ncclean.storage.joined import JoinedScores
from ncclean.storage.quoting import quoted, truth_of

UNSPECIFIED = "unspecified"  # noise without a kind
OTHER = "other"
_MOST_KINDS = 20
_IS_RATE = "noise_probability BETWEEN 0 AND 1"  # not NaN
_READ_IF_THERE = ("is_noisy", "noise_kind", "status", "noise_probability")


@dataclass(frozen=True)
class TruthTable:
    """The scored pairs of a table that states their truth (whether they are noisy), as a view.

    The view is `judged`. `pairs` (K + 1,) counts them by kind, clean ones first; `_kind` is the
    number of a pair's kind. `unscored` counts the pairs with truth but no scores, `unknown` those
    without truth. `choice` are the scores and rules to evaluate.
    """

    connection: duckdb.DuckDBPyConnection
    choice: NoiseChoice
    kinds: list[str]
    pairs: np.ndarray
    unscored: int
    unknown: int

    @classmethod
    def of(cls, choice: NoiseChoice) -> TruthTable:
        """Open a score table with its truth. Raises `InputError` if it has no or odd truth."""
        scores = choice.table
        connection, columns = scores.connection, scores.names.types
        if "is_noisy" not in columns:
            raise InputError(f"{scores.paths[0]} has no column is_noisy: no truth to compare with")
        kind = "noise_kind::VARCHAR" if "noise_kind" in columns else "NULL::VARCHAR"
        ok = "status = 'ok'" if "status" in columns else "true"
        expressions = [*choice.columns.values(), *choice.conditions.values()]
        scores.prepare(_READ_IF_THERE, expressions)
        truth = truth_of(columns["is_noisy"])
        noisy = f"FROM scores WHERE {truth} AND {ok}"
        try:
            counts = connection.execute(
                f"SELECT coalesce({kind}, '{UNSPECIFIED}') AS kind, count(*) AS pairs {noisy} "
                "GROUP BY 1 ORDER BY pairs DESC, kind"
            ).fetchall()
        except duckdb.ConversionException as error:
            raise InputError(
                f"{scores.paths[0]}: is_noisy takes true and false: {first_line(error)}"
            ) from error
        kinds = [str(name) for name, _ in counts]
        if len(kinds) > _MOST_KINDS:
            kinds = [*[kind for kind in kinds if kind != OTHER][: _MOST_KINDS - 1], OTHER]
        listed = f"[{', '.join(map(quoted, kinds))}]::VARCHAR[]"
        connection.execute(
            f"CREATE TEMP VIEW judged AS SELECT *, (CASE WHEN {truth} THEN "
            # A kind that is not listed counts as the last one, `other`.
            f"coalesce(list_position({listed}, coalesce({kind}, '{UNSPECIFIED}')), "
            f"{len(kinds)}) ELSE 0 END)::TINYINT AS _kind "
            f"FROM scores WHERE {truth} IS NOT NULL AND {ok}"
        )
        judged = dict(
            connection.execute("SELECT _kind, count(*) FROM judged GROUP BY 1").fetchall()
        )
        total, with_truth = connection.execute(
            f"SELECT count(*), count({truth}) FROM scores"
        ).fetchall()[0]
        if not with_truth:
            raise InputError(
                f"{scores.paths[0]} holds no truth: is_noisy is null in every row. Score shards "
                "that `ncclean inject-noise` or `ncclean synth` wrote"
            )
        pairs = np.array([judged.get(number, 0) for number in range(len(kinds) + 1)])
        unscored = with_truth - int(pairs.sum())
        kinds = [f"kind {kind}" if kind == ALL else kind for kind in kinds]
        return cls(connection, choice, kinds, pairs, unscored, total - with_truth)

    def noise_rate(self) -> tuple[float, str]:
        """Return the share of pairs to flag by scores without a threshold, and its source."""
        if "noise_probability" in self.choice.table.names.types:
            mean = self._rows(f"SELECT avg(noise_probability) FROM judged WHERE {_IS_RATE}")[0][0]
            if mean is not None:
                return float(mean), "the mean noise_probability"
        return float(self.pairs[1:].sum() / self.pairs.sum()), "the true share of noise"

    def read(self, score: NoiseScore) -> tuple[SortedScores, int]:
        """Read one noise score of all pairs, sorted, and count the pairs without one.

        Raises `InputError` for a column that holds no numbers.
        """
        name = self.choice.columns[score.column].sql
        is_float = self.choice.table.names.types.get(score.column) == "FLOAT"
        value = name if is_float else f"{name}::DOUBLE"
        arrays = self._execute(
            f"SELECT _kind, {value} AS score FROM judged "
            f"WHERE {name} IS NOT NULL AND NOT isnan({value})",
            f"the score {score.column!r}",
        ).fetchnumpy()
        values = np.asarray(arrays["score"])
        missing = int(self.pairs.sum()) - len(values)
        values = -values if score.sign < 0 else values
        return SortedScores.of(values, np.asarray(arrays["_kind"])), missing

    def evaluate(
        self, on_score: Callable[[int], None] = lambda number: None
    ) -> tuple[NoiseEvaluation, list[ScoreFigure]]:
        """Evaluate every chosen score and rule; return the curves to plot, too.

        Each column is read alone, as arrays, and sorted: 10 million pairs take 0.7 GB. Scores
        without a value are omitted; `on_score` receives the number of each, from 1.
        """
        rate, source = self.noise_rate()
        evaluations, figures = [], []
        for number, score in enumerate(self.choice.scores.values(), start=1):
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
            rules=self.rules(),
            calibration=self.calibration(),
            joined=self.choice.table.partners,
        )
        return evaluation, figures

    def rules(self) -> list[RuleEvaluation]:
        """Evaluate every chosen rule, over the pairs for which it is not null."""
        evaluations = []
        for rule in self.choice.rules:
            # One at a time, so that an error names its rule.
            sql = self.choice.conditions[rule.condition].sql
            rows = self._rows(
                f"SELECT _kind, count(*), count_if(flag) FROM "
                f"(SELECT _kind, {sql}::BOOLEAN AS flag FROM judged) "
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
        """Compare the column `noise_probability` with the truth; None without that column."""
        if "noise_probability" not in self.choice.table.names.types:
            return None
        rows = self._rows(
            f"SELECT least(floor(p * {BINS}), {BINS - 1})::INTEGER, _kind, count(*), sum(p), "
            "sum(p * p) FROM (SELECT noise_probability::DOUBLE AS p, _kind FROM judged "
            f"WHERE {_IS_RATE}) GROUP BY 1, 2"
        )
        if not rows:
            return None
        sums = np.zeros((3, BINS, len(self.kinds) + 1))
        for bin_, kind, *cells in rows:
            sums[:, bin_, kind] = cells
        return calibration(sums[0].astype(np.int64), sums[1], sums[2], self.kinds)

    def _rows(self, sql: str, what: str = "the table") -> list[tuple[Any, ...]]:
        return self._execute(sql, what).fetchall()

    def _execute(self, sql: str, what: str = "the table") -> duckdb.DuckDBPyConnection:
        try:
            return self.connection.execute(sql)
        except duckdb.Error as error:
            raise InputError(f"{what} cannot be evaluated: {first_line(error)}") from error


def evaluate_noise(
    scores: Sequence[str],
    *,
    join: Sequence[str] = (),
    higher_is_noisier: Sequence[str] = (),
    lower_is_noisier: Sequence[str] = (),
    expressions: Sequence[str] = (),
    rules: Sequence[str] = (),
    thresholds: Mapping[str, float] | None = None,
    plot: str | None = None,
    memory_limit: str | None = None,
    progress: Progress = SILENT,
) -> NoiseEvaluation:
    """Evaluate the scores and rules of a table by its truth, and plot them on request.

    Columns, `NAME=SQL` expressions (higher is cleaner) and rules add to the built-in ones. Raises
    `InputError` if the table has no truth, or lacks a requested column or rule.
    """
    progress.say("comparing scores and rules with the truth")
    with JoinedScores.open(scores, join, memory_limit) as pairs:
        choice = NoiseChoice(pairs)
        choice.add_columns(higher_is_noisier, higher_is_noisier=True)
        choice.add_columns(lower_is_noisier, higher_is_noisier=False)
        choice.add_expressions(expressions)
        choice.add_rules(rules)
        choice.set_thresholds(dict(thresholds or {}))
        count = len(choice.scores)
        evaluation, figures = TruthTable.of(choice).evaluate(
            lambda number: progress.advance(number, count, "scores")
        )
    if not evaluation.scores:
        raise InputError(f"{scores[0]} has no score to evaluate: name one with --score or --column")
    if plot is not None:
        write_figure(draw_noise(evaluation, figures), plot, "evaluate noise")
    return evaluation
