"""Measure a judge by people's answers, and the number of further answers an interval needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ncclean.auditing.answers import Answered
from ncclean.auditing.intervals import Cells, found_share, mismatched_share, variances
from ncclean.auditing.two_phase import MATCH, MISMATCH, NEITHER
from ncclean.base.estimates import UNKNOWN, Estimate, flattened
from ncclean.errors import InputError

JUDGED = {MATCH: "match", MISMATCH: "mismatch", NEITHER: "neither"}
_MOST_STEPS = 20
_ROUNDING = 1e-9  # an interval up to this counts as without width


@dataclass(frozen=True)
class JudgeAudit:
    """The quality of a judge with `answers` on a corpus, `compared` of them with people's.

    `unknown` answers are on pairs that the table does not have. `agreement` is, among the pairs
    that the judge calls match or mismatch, the share on which people agree. `confusion` has the
    shares of the judge's answers for true `match` and `mismatch`. `alone` is the noise rate by
    people alone; `helps` says whether the judge makes it clearly more certain, and is therefore
    used.
    """

    name: str
    answers: int
    compared: int
    unknown: int
    agreement: Estimate
    confusion: Mapping[str, Mapping[str, Estimate]]
    alone: Estimate
    helps: bool

    def to_json(self) -> dict[str, Any]:
        """Return the judge's figures, as `ncclean audit --json` prints them."""
        return {
            "name": self.name,
            "answers": self.answers,
            "compared": self.compared,
            "answers_unknown": self.unknown,
            **flattened([("agreement", self.agreement), ("noise_rate_by_people", self.alone)]),
            "helps": self.helps,
            "confusion": {
                truth: flattened(of_truth.items()) for truth, of_truth in self.confusion.items()
            },
        }


def audit_judge(
    name: str, people: Answered, whole: Cells, noise: Estimate, answers: int, asked: int
) -> JudgeAudit:
    """Compare a judge with people, on the counts `whole` of a corpus in S strata, (1, S, 3).

    `noise` is the noise rate by both, `answers` the number of the judge's answers in the table,
    `asked` of all. Raises `InputError` if it answered about none of people's pairs.
    """
    assert whole.judged is not None
    assert people.judge is not None
    compared = int((people.judge >= 0).sum())
    if not compared:
        raise InputError(
            f"{name} has no answer on a pair that people judged, so its errors cannot be measured. "
            "Draw both samples with one --seed"
        )
    if not whole.judged[..., [MATCH, MISMATCH]].any():
        raise InputError(f"{name} calls no pair a match or a mismatch")
    alone = UNKNOWN if whole.drawn_by_judge else mismatched_share(whole.without_judge())[0]
    split = whole.split()
    pairs, counts, mismatched = (
        part.reshape(3, -1)
        for part in (split.pairs, split.answers[..., 0], split.mismatched[..., 0])
    )
    told = [MATCH, MISMATCH]
    right = np.stack([(counts - mismatched)[MATCH], mismatched[MISMATCH]])
    agreement = mismatched_share(_row(pairs[told], counts[told], right))[0]
    confusion = {
        "match": _shares(pairs, counts, counts - mismatched),
        "mismatch": _shares(pairs, counts, mismatched),
    }
    return JudgeAudit(
        name=name,
        answers=answers,
        compared=compared,
        unknown=max(asked - answers, 0),
        agreement=agreement,
        confusion=confusion,
        alone=alone,
        helps=whole.drawn_by_judge or noise != alone,
    )


def _shares(pairs: np.ndarray, answers: np.ndarray, counted: np.ndarray) -> dict[str, Estimate]:
    """Return each of the judge's answers with its share among the pairs that `counted` counts."""
    shares = {}
    for answer, name in JUDGED.items():
        if not pairs[answer].any():
            continue
        others = [other for other in JUDGED if other != answer]
        mine, rest = (_row(pairs[n], answers[n], counted[n]) for n in ([answer], others))
        shares[name] = found_share(mine, rest)[0]
    return shares


def _row(pairs: np.ndarray, answers: np.ndarray, counted: np.ndarray) -> Cells:
    """All cells as those of one figure."""
    return Cells(pairs.reshape(1, -1), answers.reshape(1, -1), counted.reshape(1, -1))


@dataclass(frozen=True)
class AnswersNeeded:
    """The total numbers of answers that give the noise rate an interval of `width`.

    People's are given `with_judge` and `alone`; None if no number suffices. `of_judge` is how many
    answers the judge must give for that, None if the existing ones suffice. With `at_least`, all
    answers so far agree: the numbers hold if the others do too, else more are needed.
    """

    width: float
    with_judge: int | None
    alone: int | None
    of_judge: int | None
    at_least: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of needed answers by name."""
        return dict(self.__dict__)


def answers_needed(
    cells: Cells, noise: Estimate, width: float, judge: JudgeAudit | None
) -> AnswersNeeded:
    """Estimate how many answers an interval of `width` needs, from the present one of `cells`.

    Assumes that variances of means fall with the numbers of people's and the judge's answers, and
    that both exceed theory by as much as today's interval does.
    """
    people = cells if cells.judged is None else cells.without_judge()
    agree = sum(variances(people)) <= 0 and bool((people.answers < people.pairs).any())
    if judge is None:
        return AnswersNeeded(width, None, _needed(cells, noise, width)[0], None, agree)
    alone = None
    if judge.alone.is_known:
        alone = _needed(cells.without_judge(), judge.alone, width)[0]
    with_judge, of_judge = _needed(cells, noise, width) if judge.helps else (alone, None)
    return AnswersNeeded(width, with_judge, alone, of_judge, agree)


def _needed_of_half(cells: Cells, width: float) -> int:
    """Return the number of answers needed if every pair has one.

    Such an interval has no width to scale, so half of the answers stand for a sample.
    """
    alone = cells if cells.judged is None else cells.without_judge()
    half = Cells(alone.pairs, alone.answers / 2, alone.mismatched / 2)
    return _needed(half, mismatched_share(half)[0], width, is_half=True)[0]


def _growth(cells: Cells, now: float, width: float) -> float:
    """The factor by which answers must grow for an interval of `width`, if all agree as so far.

    The interval of many answers shrinks as their number grows; that of a few shrinks more slowly.
    """
    factor = 1.0
    for _ in range(_MOST_STEPS):
        factor *= now / width
        answers = np.minimum(cells.answers * factor, cells.pairs)
        part = answers / np.maximum(cells.answers, 1)
        grown = replace(cells, answers=answers, mismatched=cells.mismatched * part)
        noise = mismatched_share(grown)[0]
        now = noise.high - noise.low
        is_all = factor * cells.answered.sum() > cells.pairs.sum() or now < _ROUNDING
        if is_all or abs(now / width - 1) < 0.01:
            break
    return factor


def _needed(
    cells: Cells, noise: Estimate, width: float, is_half: bool = False
) -> tuple[int, int | None]:
    """Return numbers of answers by people, and by the judge if it needs more."""
    answers, pairs = float(cells.answered.sum()), float(cells.pairs.sum())
    judged = pairs if cells.judged is None else float(cells.judged.sum())
    people, judge = variances(cells)
    now, of_judge = noise.high - noise.low, None
    if now < _ROUNDING:
        return (math.ceil(answers) if is_half else _needed_of_half(cells, width)), None
    if people + judge <= 0:
        return math.ceil(min(answers * _growth(cells, now, width), pairs)), None
    goal = (people + judge) * (width / now) ** 2
    if judge > 0.75 * goal:
        share = 0.5 * goal / judge
        more = 1 / (share * (1 / judged - 1 / pairs) + 1 / pairs)
        judge, judged, of_judge = 0.5 * goal, more, math.ceil(more)
    # Of n pairs from m, a mean varies as 1 / n - 1 / m.
    rate = people / max(1 / answers - 1 / max(judged, answers + 1), 1e-12)
    return math.ceil(1 / ((goal - judge) / rate + 1 / judged)), of_judge
