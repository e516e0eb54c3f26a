"""Which scores and rules of a table to evaluate: the built-in ones, and those asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ncclean.base.rules import RULES, Rule
from ncclean.base.schema import facts_of
from ncclean.errors import InputError
from ncclean.evaluation.noise_scores import BUILT_IN_SCORES, NoiseScore, named_score
from ncclean.storage.expressions import Expression, missing_column
from ncclean.storage.joined import JoinedScores


@dataclass
class NoiseChoice:
    """Scores by name and rules, each with its SQL in `columns` and `conditions`.

    It starts with the built-in ones that `table` has the columns of.
    """

    table: JoinedScores
    scores: dict[str, NoiseScore] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    columns: dict[str, Expression] = field(default_factory=dict)
    conditions: dict[str, Expression] = field(default_factory=dict)

    def __post_init__(self) -> None:
        there = self.table.names.types
        for score in BUILT_IN_SCORES:
            if score.column in there:
                self._add(score)
        for rule in RULES:
            if set(rule.columns) <= set(there):
                self._add_rule(rule)

    def add_columns(self, texts: Sequence[str], *, higher_is_noisier: bool) -> None:
        """Add columns to evaluate as noise scores. Raises `InputError` for an unknown one."""
        there = self.table.names.types
        for text in texts:
            name = self.table.names.named(text)
            if name is None:
                raise InputError(missing_column(text, there))
            if name not in self.scores:
                self._add(NoiseScore(name, higher_is_noisier))

    def add_expressions(self, texts: Sequence[str]) -> None:
        """Add scores to evaluate, as SQL or `NAME=SQL`; a known column keeps its direction.

        Raises `InputError` for what is not one expression, or a name that is taken.
        """
        for text in texts:
            name, sql = named_score(text)
            facts = facts_of(sql)
            column = self.table.names.named(name)
            if name in self.scores or (column is not None and name != sql):
                raise InputError(f"--score {text}: there is a score or column {name} already")
            score = NoiseScore(name, facts is not None and not facts.higher_is_cleaner)
            self._add(score, sql)

    def add_rules(self, conditions: Sequence[str]) -> None:
        """Add rules to evaluate: SQL that flags a pair. Raises `InputError` for other text."""
        for condition in conditions:
            self._add_rule(Rule(condition, condition))

    def set_thresholds(self, thresholds: Mapping[str, float]) -> None:
        """Set the thresholds at which scores are judged. Raises `InputError` for another score."""
        for name, threshold in thresholds.items():
            if name not in self.scores:
                raise InputError(f"--threshold {name}: no such column is evaluated")
            if math.isnan(threshold):
                raise InputError(f"--threshold {name}: nan is not a number to compare with")
            score = self.scores[name]
            self.scores[name] = dataclasses.replace(score, threshold=threshold, below=False)

    def _add(self, score: NoiseScore, sql: str | None = None) -> None:
        option = "--column" if sql is None else "--score"
        self.columns[score.column] = self.table.expression(sql or score.column, option)
        self.scores[score.column] = score

    def _add_rule(self, rule: Rule) -> None:
        what = f"the rule {rule.title!r}"
        self.conditions[rule.condition] = self.table.expression(
            rule.condition, what, is_condition=True
        )
        self.rules.append(rule)
