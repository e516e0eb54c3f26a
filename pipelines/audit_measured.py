"""The text that `ncclean audit --answers` prints."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ncclean.base.formats import Table, interval, share

from .display import Note, Shown

if TYPE_CHECKING:
    from ncclean.auditing.audit import Audit, RuleAudit
    from ncclean.auditing.judge_audit import AnswersNeeded, JudgeAudit

estimate = partial(interval, called="")


def measured_lines(audit: Audit, applied: bool) -> Iterator[Shown]:
    answers = ", ".join(f"{count:,} {kind}" for kind, count in audit.given.items() if count)
    yield f"{audit.counted:,} answers on {audit.pairs:,} pairs: {answers}"
    if audit.unknown:
        yield Note(f"{audit.unknown:,} answers are on pairs that the table does not have")
    if audit.repeated:
        yield Note(f"{audit.repeated:,} answers were replaced by another one on the same pair")
    rates = (estimate(audit.noise), estimate(audit.expected))
    yield Table("", ("", "measured (95 % interval)", "expected"), (("noise rate", *rates),))
    if audit.judge is not None:
        yield from _judge_lines(audit.judge)
    if audit.needed is not None:
        yield _needed_line(audit.needed)
    rules = [*audit.rules, *([audit.selection] if audit.selection is not None else [])]
    yield Table(
        "Rules",
        ("rule", "flags", "judged", "precision", "expected", "recall", "expected"),
        tuple(map(_rule_row, rules)),
    )
    yield Table(
        "Noise among the kept pairs",
        ("kept by", "pairs", "measured noise rate", "expected"),
        tuple(_kept_row(rule, audit.pairs) for rule in rules),
    )
    for sentence in audit.disagreements:
        yield Note(sentence)
    if not audit.disagreements:
        yield "the calibration agrees with the audit"
    if applied:
        yield Note(
            "the calibration was moved to the answers: its probabilities are audited", "aside"
        )
    elif audit.disagreements:
        yield "--apply moves the calibration to these answers"


def _judge_lines(judge: JudgeAudit) -> Iterator[Shown]:
    yield (
        f"the judge, {judge.name}: {judge.answers:,} answers, {judge.compared:,} of them on pairs "
        f"that people judged; both agree on {estimate(judge.agreement)}"
    )
    if judge.unknown:
        yield Note(f"{judge.unknown:,} of its answers are on pairs that the table does not have")
    yield Table(
        "The judge",
        ("people say", *(f"judge: {answer}" for answer in judge.confusion["match"])),
        tuple(
            (truth, *map(estimate, shares.values())) for truth, shares in judge.confusion.items()
        ),
    )
    if judge.helps and judge.alone.is_known:
        yield f"by people alone, the noise rate is {estimate(judge.alone)}"
    elif not judge.helps:
        yield Note("the judge makes the noise rate hardly more certain: it is by people alone")


def _needed_line(needed: AnswersNeeded) -> str:
    width = f"an interval of {100 * needed.width:.3g} points"
    alone = f"{needed.alone:,} answers of people" if needed.alone is not None else ""
    about = "at least" if needed.at_least else "about"
    if needed.with_judge is None:
        return f"{width} takes {about} {alone} in all"
    line = f"{width} takes {about} {needed.with_judge:,} answers of people in all"
    if needed.of_judge is not None:
        line += f" and {needed.of_judge:,} of the judge"
    is_other = alone and needed.alone != needed.with_judge
    return line + (f" ({needed.alone:,} without the judge)" if is_other else "")


def _rule_row(rule: RuleAudit) -> tuple[str, ...]:
    return (
        rule.name,
        f"{rule.flagged:,}",
        f"{rule.answers:,}",
        estimate(rule.precision),
        share(rule.expected_precision),
        estimate(rule.recall),
        share(rule.expected_recall),
    )


def _kept_row(rule: RuleAudit, pairs: int) -> tuple[str, ...]:
    negated = rule.name.removeprefix("not ")  # `not disncl_clean` flags what it keeps
    name = negated if negated != rule.name else f"not: {rule.name}"
    name = "the selection" if rule.name == "dropped" else name
    return name, f"{pairs - rule.flagged:,}", estimate(rule.kept), share(rule.expected_kept)
