"""Figures measured by an audit: noise rate, rules, strata, and the judge's quality."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ncclean.auditing.answers import Design
from ncclean.auditing.judge_audit import AnswersNeeded, JudgeAudit
from ncclean.base.estimates import Estimate, flattened
from ncclean.scoring.recalibration import Audited


@dataclass(frozen=True)
class StratumAudit:
    """The answers in a stratum: pairs with a noise probability in [`low`, `high`).

    The last stratum includes its end.
    """

    low: float
    high: float
    pairs: int
    answers: int
    mismatched: int
    expected_rate: float | None


@dataclass(frozen=True)
class RuleAudit:
    """Precision and recall of a detection rule, by the answers of an audit.

    The rule flags `flagged` pairs, of which `answers` were judged. `kept` is the noise rate of the
    pairs not flagged. The expected figures come from the table's noise probabilities; None without
    a denominator.
    """

    name: str
    flagged: int
    answers: int
    precision: Estimate
    recall: Estimate
    kept: Estimate
    expected_precision: float | None
    expected_recall: float | None
    expected_kept: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "flagged": self.flagged,
            "answers": self.answers,
            **flattened(
                [("precision", self.precision), ("recall", self.recall), ("noise_rate", self.kept)]
            ),
            "expected_precision": self.expected_precision,
            "expected_recall": self.expected_recall,
            "expected_noise_rate": self.expected_kept,
        }


@dataclass(frozen=True)
class Judged:
    """The n answered pairs of a table, to which a calibration is fitted.

    `rows` are those of `AuditTable.judged`; `mismatched` (n,) are the judgements, and `weight` (n,)
    is the number of pairs of the corpus that a pair stands for.
    """

    rows: pa.Table
    mismatched: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class Audit:
    """The figures that an audit measured on a corpus of `pairs` pairs, from `counted` answers.

    `given` counts the answers on pairs of the table by kind, `unknown` those on pairs that it lacks
    (or that have no noise probability), `repeated` those that another one replaced. `expected` is
    the noise rate that the table states, with its interval. `selection` is the rule that flags
    pairs dropped by a selection. `design` has the strata, `audited` the correction by an earlier
    audit. `judge` is the quality of a judge, `needed` the answers needed for an interval.
    """

    pairs: int
    counted: int
    given: Mapping[str, int]
    unknown: int
    repeated: int
    noise: Estimate
    expected: Estimate
    rules: tuple[RuleAudit, ...]
    selection: RuleAudit | None
    strata: tuple[StratumAudit, ...]
    judged: Judged
    design: Design
    digest: str
    audited: Audited | None
    judge: JudgeAudit | None = None
    needed: AnswersNeeded | None = None

    @property
    def disagreements(self) -> list[str]:
        """Sentences about the figures on which the calibration and the measurement disagree."""
        sentences = []
        figures = [("noise rate", self.noise, self.expected)]
        if self.selection is not None and self.selection.expected_kept is not None:
            kept = Estimate(self.selection.expected_kept)
            figures.append(("noise rate among the kept pairs", self.selection.kept, kept))
        for name, measured, expected in figures:
            side = _side(expected, measured)
            if side is not None:
                sentences.append(
                    f"the calibration expects a {name} of {expected.value:.1%}, {side} than the "
                    f"audit measures: {measured.value:.1%} ({measured.low:.1%} to "
                    f"{measured.high:.1%})"
                )
        return sentences

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name, as `ncclean audit --json` prints them."""
        return {
            "pairs": self.pairs,
            "answers": self.counted,
            "answers_by_kind": dict(self.given),
            "answers_unknown": self.unknown,
            "answers_repeated": self.repeated,
            **flattened([("noise_rate", self.noise), ("expected_noise_rate", self.expected)]),
            "agrees": not self.disagreements,
            "disagreements": self.disagreements,
            "rules": {rule.name: rule.to_json() for rule in self.rules},
            "selection": self.selection.to_json() if self.selection is not None else None,
            "strata": [dataclasses.asdict(stratum) for stratum in self.strata],
            "audited": self.audited is not None,
            "judge": self.judge.to_json() if self.judge is not None else None,
            "answers_needed": self.needed.to_json() if self.needed is not None else None,
        }


def _side(expected: Estimate, measured: Estimate) -> str | None:
    """Return `less` or `more` if the expected differs from the measured value beyond chance.

    The interval of the difference adds the squared halves of both intervals (Zou and Donner 2008).
    An expected value without an interval is compared as it is.
    """
    if not (expected.is_known and measured.is_known):
        return None
    low, high = expected[1:] if expected.has_interval else (expected.value, expected.value)
    difference = expected.value - measured.value
    if difference > math.hypot(expected.value - low, measured.high - measured.value):
        return "more"
    if -difference > math.hypot(high - expected.value, measured.value - measured.low):
        return "less"
    return None
