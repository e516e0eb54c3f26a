"""A score table with ground truth: what each score and rule finds in it.

A column is read alone, as arrays, to be sorted: 10 million pairs take 0.7 GB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ncclean.base.progress import SILENT, Progress
from ncclean.errors import InputError
from ncclean.evaluation.noise_choice import NoiseChoice
from ncclean.evaluation.noise_evaluation import NoiseEvaluation
from ncclean.evaluation.noise_figure import save_figure
from ncclean.evaluation.truth_table import TruthTable
from ncclean.storage.joined import JoinedScores


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
    """Judge the scores and rules of a table by the truth in it, and plot them if asked to.

    Columns, `NAME=SQL` expressions (higher is cleaner) and rules are those beside the ones that are
    known. Raises `InputError` if the table has no truth, or a column or rule that it is asked for.
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
        save_figure(evaluation, figures, plot)
    return evaluation
