"""Choose the scores and rules of a table to evaluate: built-in and requested ones."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ncclean.base.rules import RULES, Rule, flagging_condition
from ncclean.base.schema import EVALUATED_SCORES, facts_of
from ncclean.errors import InputError
from ncclean.storage.expressions import Expression, missing_column
from ncclean.storage.joined import JoinedScores


@dataclass(frozen=True)
class NoiseScore:
    """A column as a score of noise, and the threshold at which it flags pairs.

    A pair at or beyond `threshold`, on the noisier side, is flagged; `below` excludes the threshold
    itself. Without a threshold, as many pairs are flagged as are estimated to be noisy.
    """

    column: str
    higher_is_noisier: bool
    threshold: float | None = None
    below: bool = False

    @property
    def sign(self) -> int:
        """The factor, 1 or -1, that turns the column into a noise score: higher is noisier."""
        return 1 if self.higher_is_noisier else -1

    def noise_threshold(self, threshold: float, kind: np.dtype[Any]) -> float:
        """Return the noise score at and above which pairs are flagged, for scores of this type.

        SQL, too, compares numbers of 32 bits with a threshold of 32 bits: 0.3 is at most 0.3.
        """
        bound = kind.type(threshold)
        if self.below:
            bound = np.nextafter(bound, kind.type(self.sign * math.inf))
        return self.sign * float(bound)

    def condition(self, threshold: float) -> str:
        """Return SQL that is true for the pairs that a threshold flags; tables show it."""
        return flagging_condition(
            self.column,
            threshold,
            higher_is_cleaner=not self.higher_is_noisier,
            exclusive=self.below,
        )


BUILT_IN_SCORES = tuple(
    NoiseScore(column, not facts.higher_is_cleaner, facts.noise_threshold, below=facts.exclusive)
    for column, facts in EVALUATED_SCORES.items()
)


def named_score(text: str) -> tuple[str, str]:
    """Split `NAME=SQL` into name and SQL; SQL alone is its own name.

    >>> named_score("mix = 0.5 * rank(similarity)")
    ('mix', '0.5 * rank(similarity)')
    """
    named = re.fullmatch(r"\s*(\w+)\s*=(?!=)\s*(.+)", text, re.DOTALL)
    return (named[1], named[2]) if named is not None else (text, text)


def threshold_at_rate(sorted_scores: np.ndarray, rate: float) -> float:
    """Return the threshold that flags the share `rate` of (N,) descending noise scores.

    Infinite where the rate is 0: nothing is flagged.
    """
    count = min(math.ceil(rate * len(sorted_scores) - 1e-9), len(sorted_scores))
    return float(sorted_scores[count - 1]) if count > 0 else math.inf


@dataclass
class NoiseChoice:
    """The scores, by name, and rules to evaluate, with their SQL in `columns` and `conditions`.

    It starts with the built-in ones for which `table` has the columns.
    """

    table: JoinedScores
    scores: dict[str, NoiseScore] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    columns: dict[str, Expression] = field(default_factory=dict)
    conditions: dict[str, Expression] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = self.table.names.types
        for score in BUILT_IN_SCORES:
            if score.column in columns:
                self._add(score)
        for rule in RULES:
            if set(rule.columns) <= set(columns):
                self._add_rule(rule)

    def add_columns(self, texts: Sequence[str], *, higher_is_noisier: bool) -> None:
        """Add columns to evaluate as noise scores. Raises `InputError` for an unknown one."""
        columns = self.table.names.types
        for text in texts:
            name = self.table.names.named(text)
            if name is None:
                raise InputError(missing_column(text, columns))
            if name not in self.scores:
                self._add(NoiseScore(name, higher_is_noisier))

    def add_expressions(self, texts: Sequence[str]) -> None:
        """Add scores to evaluate, as SQL or `NAME=SQL`; a known column keeps its direction.

        Raises `InputError` for anything but one expression, or for a taken name.
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
        """Set the thresholds at which scores flag pairs. Raises `InputError` for another score."""
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
