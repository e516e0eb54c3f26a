"""The noise evaluation stage: a score table with ground truth to what each score found.

A column is read alone, as arrays, to be sorted: 10 million pairs take 0.7 GB.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from ncclean.errors import InputError
from ncclean.evaluation.noise_evaluation import (
    NoiseEvaluation,
    ScoreEvaluation,
    ScoreFigure,
    evaluate_score,
    figure_of,
)
from ncclean.evaluation.noise_scores import BUILT_IN_SCORES, NoiseScore
from ncclean.evaluation.truth_table import TruthTable as JudgedTable
from ncclean.rules import RULES as BUILT_IN_RULES
from ncclean.rules import Rule as NoiseRule


@dataclass(frozen=True, kw_only=True)
class NoiseEvaluationRequest:
    """What to evaluate. `columns` and `rules` come on top of the built-in ones.

    `joined` are tables with a `uid` whose columns are added to those of the scores; `thresholds`
    replace operating points, by column.
    """

    scores: Sequence[str]
    joined: Sequence[str] = ()
    columns: Sequence[NoiseScore] = ()
    rules: Sequence[str] = ()
    thresholds: dict[str, float] = field(default_factory=dict)
    memory_limit: str | None = None


@dataclass(frozen=True)
class NoiseFindings:
    """The evaluation, and what is drawn of each column."""

    evaluation: NoiseEvaluation
    figures: list[ScoreFigure]


def evaluate_noise(request: NoiseEvaluationRequest) -> NoiseFindings:
    """Compare every score and rule of a table with the truth in it.

    Raises `InputError` if the table has no truth, or a column or rule that it is asked for.
    """
    table = JudgedTable.open(request.scores, request.joined, request.memory_limit)
    rate, source = table.noise_rate()
    evaluations: list[ScoreEvaluation] = []
    figures: list[ScoreFigure] = []
    for score in _columns(request, table.columns):
        scores, unscored = table.read(score)
        if not len(scores.values):
            continue
        evaluations.append(evaluate_score(scores, score, table.kinds, rate, source, unscored))
        figures.append(figure_of(scores, score, table.kinds))
    if not evaluations:
        raise InputError(f"{request.scores[0]} has no score to evaluate")
    evaluation = NoiseEvaluation(
        clean=int(table.pairs[0]),
        noisy=dict(zip(table.kinds, table.pairs[1:].tolist(), strict=True)),
        unscored=table.unscored,
        unknown=table.unknown,
        noise_rate=rate,
        noise_rate_source=source,
        scores=evaluations,
        rules=table.rules(_rules(request, table.columns)),
        calibration=table.calibration(),
    )
    return NoiseFindings(evaluation, figures)


def _columns(request: NoiseEvaluationRequest, there: dict[str, str]) -> list[NoiseScore]:
    """The built-in scores that are there, then those asked for, with their thresholds."""
    scores = {score.column: score for score in BUILT_IN_SCORES if score.column in there}
    for score in request.columns:
        if score.column not in there:
            raise InputError(f"there is no column {score.column}; there are {', '.join(there)}")
        scores.setdefault(score.column, score)
    unknown = set(request.thresholds) - set(scores)
    if unknown:
        raise InputError(f"--threshold {min(unknown)}: no such column is evaluated")
    for name, threshold in request.thresholds.items():
        scores[name] = dataclasses.replace(scores[name], threshold=threshold, below=False)
    return list(scores.values())


def _rules(request: NoiseEvaluationRequest, there: dict[str, str]) -> list[NoiseRule]:
    built_in = [rule for rule in BUILT_IN_RULES if set(rule.columns) <= set(there)]
    return [*built_in, *(NoiseRule(sql, sql, ()) for sql in request.rules)]


def parse_thresholds(texts: Sequence[str]) -> dict[str, float]:
    """`similarity=0.25` to a threshold by column. Raises `InputError` for anything else."""
    found = {}
    for text in texts:
        column, _, value = text.rpartition("=")
        try:
            found[column.strip()] = float(value)
        except ValueError:
            raise InputError(f"--threshold takes column=number, got {text!r}") from None
    return found
