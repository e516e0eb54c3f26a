"""A score table with ground truth, and what each score and rule finds in it.

A column is read alone, as arrays, to be sorted: 10 million pairs take 0.7 GB.
"""

from __future__ import annotations

from pathlib import Path

from ncclean.errors import InputError
from ncclean.evaluation.noise_choice import NoiseChoice
from ncclean.evaluation.noise_evaluation import NoiseEvaluation
from ncclean.evaluation.noise_figure import save_figure
from ncclean.evaluation.truth_table import TruthTable
from ncclean.storage.joined import JoinedScores

from ..evaluate_noise import EvaluateNoise
from ..progress import Progress


def evaluate(command: EvaluateNoise, progress: Progress) -> NoiseEvaluation:
    """Compare every score and rule of a table with the truth in it, and draw it if asked to.

    Raises `InputError` if the table has no truth, or a column or rule that it is asked for.
    """
    progress.say("comparing scores and rules with the truth")
    with JoinedScores.open(command.scores, command.join, command.memory_limit) as pairs:
        choice = NoiseChoice(pairs)
        choice.add_columns(command.column, higher_is_noisier=True)
        choice.add_columns(command.lower_is_noisier, higher_is_noisier=False)
        choice.add_expressions(command.score)
        choice.add_rules(command.rule)
        choice.set_thresholds(command.thresholds)
        count = len(choice.scores)
        evaluation, figures = TruthTable.of(choice).evaluate(
            lambda number: progress.advance(number, count, "scores")
        )
    if not evaluation.scores:
        raise InputError(f"{command.scores[0]} has no score to evaluate")
    if command.plot is not None:
        save_figure(evaluation, figures, Path(command.plot))
    return evaluation
