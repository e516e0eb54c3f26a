"""The detection rules: conditions that flag a pair as noisy, and their detection metrics.

`evaluate noise` compares the rules with the truth, the report shows where they agree, and a
`--method` of `select` keeps the pairs that a rule does not flag.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from ncclean.base.schema import SCORE_FACTS


@dataclass(frozen=True)
class Method:
    """A `--method` of `select`: SQL over `column`, true for the pairs to keep."""

    name: str
    column: str
    keeps: str


@dataclass(frozen=True)
class Rule:
    """SQL over the score table, true where a scored pair counts as noisy.

    `title` names the rule in the results of `evaluate noise`, `short` in the narrow columns of the
    report. `method` is the one of `select` that keeps the other pairs. A rule that `is_costly`
    loses most matched pairs of some corpora, and is not in the report.
    """

    title: str
    condition: str
    columns: tuple[str, ...] = ()
    short: str = ""
    method: Method | None = None
    is_costly: bool = False

    @property
    def name(self) -> str:
        """The rule's condition as the report prints it: typographic signs, no quotes."""
        return self.condition.replace("'", "").replace("NOT ", "not ").replace(">=", "≥")


def flagging_condition(
    column: str, threshold: float, *, higher_is_cleaner: bool, exclusive: bool = False
) -> str:
    """Return SQL that is true if a score is on the noisy side of a threshold.

    >>> flagging_condition("similarity", 0.25, higher_is_cleaner=True)
    'similarity <= 0.25'
    """
    sign = "<" if higher_is_cleaner else ">"
    # A number with an exponent has 64 bits in DuckDB, and differs from its like in a column of 32.
    number = f"{Decimal(str(threshold)):f}".removesuffix(".0")
    return f"{column} {sign}{'' if exclusive else '='} {number}"


def _at_operating_point(column: str, short: str, method: Method | None = None) -> Rule:
    facts = SCORE_FACTS[column]
    if facts.noise_threshold is None:
        raise ValueError(f"{column} has no operating point in ncclean.base.schema")
    condition = flagging_condition(
        column,
        facts.noise_threshold,
        higher_is_cleaner=facts.higher_is_cleaner,
        exclusive=facts.exclusive,
    )
    return Rule(condition, condition, (column,), short, method)


RULES = (
    Rule(
        "osa_noisy",
        "osa_noisy",
        ("osa_noisy",),
        "OSA",
        Method("osa", "osa_weight", "osa_weight > 0"),
    ),
    Rule(
        "ncu forget",
        "ncu_split = 'forget'",
        ("ncu_split",),
        "NCU",
        Method("ncu", "ncu_split", "ncu_split = 'retain'"),
    ),
    Rule(
        "not disncl_clean",
        "NOT disncl_clean",
        ("disncl_clean",),
        "DisNCL",
        Method("disncl", "disncl_clean", "disncl_clean"),
        is_costly=True,  # it keeps 13 to 70 % of photographs (docs/records/real-clip.json)
    ),
    _at_operating_point(
        "noise_probability",
        "p\N{NO-BREAK SPACE}≥\N{NO-BREAK SPACE}½",
        Method(
            "noise-probability",
            "noise_probability",
            f"noise_probability < {SCORE_FACTS['noise_probability'].noise_threshold}",
        ),
    ),
    _at_operating_point("clean_posterior", "Mixture"),
)
REPORTED = tuple(rule for rule in RULES if not rule.is_costly)
METHODS = {rule.method.name: rule.method for rule in RULES if rule.method is not None}


@dataclass(frozen=True)
class DetectionCounts:
    """Flagged pairs against the truth, with noisy pairs as the positive class.

    `caught` noisy and `alarms` clean pairs are flagged, out of `noisy` and `clean` ones. A ratio
    without a denominator is NaN.
    """

    caught: int
    alarms: int
    noisy: int
    clean: int

    @property
    def flagged(self) -> int:
        return self.caught + self.alarms

    @property
    def accuracy(self) -> float:
        return ratio(self.caught + self.clean - self.alarms, self.noisy + self.clean)

    @property
    def precision(self) -> float:
        return ratio(self.caught, self.flagged)

    @property
    def recall(self) -> float:
        return ratio(self.caught, self.noisy)

    @property
    def f1(self) -> float:
        return ratio(2 * self.caught, self.flagged + self.noisy)

    @property
    def clean_kept(self) -> float:
        return ratio(self.clean - self.alarms, self.clean)

    @property
    def clean_flagged(self) -> float:
        return ratio(self.alarms, self.clean)


def ratio(part: int, whole: int) -> float:
    """part / whole; NaN if whole is 0."""
    return part / whole if whole else math.nan
