"""A score table with ground truth, and what each score and rule finds in it.

A column is read alone, as arrays, to be sorted: 10 million pairs take 0.7 GB.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ncclean.errors import InputError
from ncclean.evaluation.noise_evaluation import NoiseEvaluation
from ncclean.evaluation.noise_figure import save_figure
from ncclean.evaluation.noise_scores import BUILT_IN_SCORES, NoiseScore
from ncclean.evaluation.truth_table import TruthTable
from ncclean.rules import RULES, Rule

from ..evaluate_noise import EvaluateNoise
from ..progress import Progress


def evaluate(command: EvaluateNoise, progress: Progress) -> NoiseEvaluation:
    """Compare every score and rule of a table with the truth in it, and draw it if asked to.

    Raises `InputError` if the table has no truth, or a column or rule that it is asked for.
    """
    progress.say("comparing scores and rules with the truth")
    table = TruthTable.open(command.scores, command.join, command.memory_limit)
    columns = _columns(command, table.columns)
    rules = [rule for rule in RULES if set(rule.columns) <= set(table.columns)]
    rules += [Rule(sql, sql) for sql in command.rule]

    def on_score(number: int) -> None:
        progress.advance(number, len(columns), "scores")

    evaluation, figures = table.evaluate(columns, rules, on_score)
    if not evaluation.scores:
        raise InputError(f"{command.scores[0]} has no score to evaluate")
    if command.plot is not None:
        save_figure(evaluation, figures, Path(command.plot))
    return evaluation


def _columns(command: EvaluateNoise, there: dict[str, str]) -> list[NoiseScore]:
    """The built-in scores that are there, then those asked for, with their thresholds."""
    scores = {score.column: score for score in BUILT_IN_SCORES if score.column in there}
    asked = [
        *(NoiseScore(name, True) for name in command.column),
        *(NoiseScore(name, False) for name in command.lower_is_noisier),
    ]
    for score in asked:
        if score.column not in there:
            raise InputError(f"there is no column {score.column}; there are {', '.join(there)}")
        scores.setdefault(score.column, score)
    unknown = set(command.thresholds) - set(scores)
    if unknown:
        raise InputError(f"--threshold {min(unknown)}: no such column is evaluated")
    for name, threshold in command.thresholds.items():
        scores[name] = dataclasses.replace(scores[name], threshold=threshold, below=False)
    return list(scores.values())
