"""Measure a corpus by the answers of an audit: noise rate, precision and recall of each rule."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ncclean.auditing.answered import Answered
from ncclean.auditing.answers import (
    ANSWERS,
    Answers,
    Counts,
    Design,
    Pair,
    is_mismatched,
    read_answers,
)
from ncclean.auditing.intervals import Cells, found_share, mismatched_share
from ncclean.auditing.judge import Judge
from ncclean.auditing.judge_audit import AnswersNeeded, JudgeAudit, answers_needed, audit_judge
from ncclean.auditing.judge_options import NO_JUDGE, JudgeOptions
from ncclean.auditing.sample import read_design
from ncclean.auditing.table import AuditTable
from ncclean.auditing.table import Counts as PairCounts
from ncclean.errors import InputError
from ncclean.estimates import Estimate, flattened
from ncclean.rules import Rule
from ncclean.scoring.recalibration import Audited
from ncclean.storage.tables import table_files, table_metadata


@dataclass(frozen=True)
class StratumAudit:
    """A stratum: pairs with a noise probability in [low, high), the last one with its end."""

    low: float
    high: float
    pairs: int
    answers: int
    mismatched: int
    expected_rate: float | None


@dataclass(frozen=True)
class RuleAudit:
    """A rule against the answers: it flags `flagged` pairs, of which `answers` were judged.

    `kept` is the noise rate of the pairs that it does not flag. The expected figures are what the
    noise probabilities of the table say; None without a denominator.
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
                [
                    ("precision", self.precision),
                    ("recall", self.recall),
                    ("noise_rate", self.kept),
                ]
            ),
            "expected_precision": self.expected_precision,
            "expected_recall": self.expected_recall,
            "expected_noise_rate": self.expected_kept,
        }


@dataclass(frozen=True)
class Judged:
    """The answered pairs that the table has, for a calibration: `rows` are `AuditTable.judged`.

    `mismatched` and `weight` = N_h / n_h are (n,).
    """

    rows: pa.Table
    mismatched: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class Audit:
    """The measured figures of a corpus of `pairs` pairs, from `counted` answers.

    `given` counts the answers by kind, `unknown` those on pairs that the table does not have (or
    has no noise probability for), `repeated` those that a later one replaced. `expected` is the
    noise rate that the table states, with its interval. `selection` is the rule that flags what a
    selection drops. `design` tells the strata, `audited` a calibration that was moved before.
    `judge` is the judge beside people, `needed` the answers that an interval takes.
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
        """A sentence for each figure that the calibration expects outside the measured interval."""
        sentences = []
        figures: list[tuple[str, Estimate, float | None]] = [
            ("noise rate", self.noise, self.expected.value)
        ]
        if self.selection is not None:
            name = "noise rate among the kept pairs"
            figures.append((name, self.selection.kept, self.selection.expected_kept))
        for name, measured, expected in figures:
            if expected is None or not measured.is_known:
                continue
            if not measured.low <= expected <= measured.high:
                side = "less" if expected < measured.low else "more"
                sentences.append(
                    f"the calibration expects a {name} of {expected:.1%}, {side} than the audit "
                    f"measures: {measured.value:.1%} ({measured.low:.1%} to {measured.high:.1%})"
                )
        return sentences

    def to_json(self) -> dict[str, Any]:
        """The figures by name, as `ncclean audit --json` prints them."""
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


def measure(
    paths: Sequence[str],
    answers: str | Sequence[str],
    *,
    sample: str | None = None,
    selection: str | None = None,
    partly: Counts = "match",
    cannot_tell: Counts = "leave-out",
    judge: JudgeOptions = NO_JUDGE,
    width: float | None = None,
    memory_limit: str | None = None,
) -> Audit:
    """Measure the noise rate and the rules of score files by the judgements in files.

    `sample` is the `sample.parquet` that the answers are on. Without it, the strata are those that
    the answers name, else those of the table: they depend on it alone. `partly` and `cannot_tell`
    say what such answers count as. With a `judge`, its answers on many pairs, corrected by people's
    on a few, make the figures more certain (two-phase sampling); they hold whatever the judge says,
    if its pairs are a random sample of each stratum, or all. `width` is that of the interval whose
    answers are to be estimated.

    Raises `InputError` for answers on other pairs, and for a table whose strata are not those of
    the sample any more.
    """
    named = [answers] if isinstance(answers, str) else list(answers)
    answered = read_answers(*named)
    design = read_design(sample) if sample is not None else answered.design
    # A draw by the judge's answers counts them as they were drawn; any count of them is right.
    is_drawn = design is not None and design.judged is not None
    by_judge = (
        Judge.read(judge, "match", "leave-out")
        if is_drawn
        else Judge.read(judge, partly, cannot_tell)
    )
    design = _of_judge(design, by_judge, named[0])
    metadata = table_metadata(table_files(paths)[0])
    audited = Audited.of_json(metadata.get("audited"))
    with AuditTable.open(paths, selection, memory_limit, by_judge) as table:
        bounds = _bounds(table, design, audited, answered)
        counts = table.counts(bounds)
        pairs, judged = counts[0].pairs.sum(axis=1), counts[0].judged.sum(axis=1)
        if design is not None and not np.array_equal(pairs, design.pairs):
            raise InputError(
                f"{sample or named[0]} is of another table, or of this one before it was "
                "calibrated again: its strata have other numbers of pairs. Draw a new sample"
            )
        by_answers = design.judged if design is not None else None
        if by_answers is not None and not np.array_equal(judged, by_answers):
            raise InputError(
                f"the pairs of {named[0]} were drawn by other answers of a judge than those given"
            )
        rows = table.judged(bounds, {uid for uid, _ in answered.by_pair})
        rules, has_selection, judge_name = table.rules, table.has_selection, table.judge
    rows, of_rows = _answered(rows, answered)
    verdicts = [is_mismatched(answered.by_pair[pair], partly, cannot_tell) for pair in of_rows]
    counted = [place for place, verdict in enumerate(verdicts) if verdict is not None]
    if not counted:
        raise InputError(
            f"no answer in {named[0]} counts for a pair of {paths[0]}: are they about another "
            "table?"
        )
    rows = rows.take(pa.array(counted))
    mismatched = np.array([float(bool(verdicts[place])) for place in counted])
    of_judge = rows.column("judge").fill_null(-1).to_numpy().astype(int) if judge_name else None
    people = Answered(
        len(pairs), rows.column("stratum").to_numpy(), mismatched, of_judge, by_answers is not None
    )
    whole = people.cells(np.ones((1, len(counted)), bool), pairs[None], judged[None])
    noise = mismatched_share(whole)[0]
    audits = _rules(rules, counts, rows, people)
    expected = counts[0].expected.sum(axis=1)
    beside = None
    if of_judge is not None and judge_name is not None:
        compared = int((of_judge >= 0).sum())
        if not compared:
            raise InputError(
                f"{judge_name} has no answer on a pair that people judged: without these nobody "
                "can tell what it is worth. Draw both samples with one --seed"
            )
        beside = audit_judge(judge_name, whole, noise, compared)
    return Audit(
        pairs=int(pairs.sum()),
        counted=len(counted),
        given={kind: Counter(answered.by_pair.values())[kind] for kind in ANSWERS},
        unknown=len(answered.by_pair) - len(of_rows),
        repeated=answered.repeated,
        noise=noise,
        expected=_expected(metadata, float(expected.sum() / pairs.sum())),
        rules=audits[:-1] if has_selection else audits,
        selection=audits[-1] if has_selection else None,
        strata=_strata(bounds, whole, expected),
        judged=Judged(rows, mismatched, people.weights(whole, beside is not None and beside.helps)),
        design=Design(bounds, pairs.astype(np.int64)),
        digest=answered.digest(),
        audited=audited,
        judge=beside,
        needed=answers_needed(whole, noise, width, beside) if width is not None else None,
    )


def _of_judge(design: Design | None, judge: Judge | None, answers: str) -> Design | None:
    """The design of both samples. Raises `InputError` for two that differ."""
    if judge is None:
        if design is not None and design.judged is not None:
            raise InputError(
                f"the pairs of {answers} were drawn by a judge's answers: give these, too, with "
                "--judge-answers or --judge-column"
            )
        return design
    of_judge = judge.answers.design if judge.answers is not None else None
    if design is None or of_judge is None:
        return design or of_judge
    if not design.is_same(of_judge):
        raise InputError(
            f"{answers} and {judge.name} are on samples of different strata: of another table, or "
            "of this one before it was calibrated again. Draw both anew"
        )
    return design


def _bounds(
    table: AuditTable, design: Design | None, audited: Audited | None, answers: Answers
) -> np.ndarray:
    """The strata's bounds by the noise probability that the table has now."""
    if audited is not None:
        drawn = np.array(audited.drawn_bounds)
        is_same = (
            answers.digest() == audited.digest
            if design is None
            else np.array_equal(drawn, design.bounds)
        )
        if is_same:  # drawn before the calibration was moved, which keeps the order
            return np.array(audited.bounds)
    return design.bounds if design is not None else table.strata().bounds


def _answered(rows: pa.Table, answers: Answers) -> tuple[pa.Table, list[Pair]]:
    """The first row of each answered pair, and the pairs.

    Raises `InputError` for an answer by uid alone where images have several captions.
    """
    places: dict[Pair, int] = {}
    numbers: dict[Pair, int] = {}
    columns = (rows.column(name).to_pylist() for name in ("uid", "caption_number"))
    for place, (uid, number) in enumerate(zip(*columns, strict=True)):
        pair = answers.key_of(uid, number)
        if pair is None:  # another caption of the image
            continue
        if numbers.setdefault(pair, number) != number:
            raise InputError(
                f"{uid} has several captions: answers need `caption_number` beside `uid`, as "
                "sample.parquet has it"
            )
        places.setdefault(pair, place)
    return rows.take(pa.array(list(places.values()), pa.int64())), list(places)


def _rules(
    rules: Sequence[Rule], counts: Sequence[PairCounts], rows: pa.Table, people: Answered
) -> tuple[RuleAudit, ...]:
    """All rules at once: a row of cells for each."""
    flags = np.stack([rows.column(f"f{n}").to_numpy() for n in range(len(rules))])

    def side(flag: bool) -> Cells:
        pairs = np.stack([sampled.pairs[:, int(flag)] for sampled in counts])
        judged = np.stack([sampled.judged[:, int(flag)] for sampled in counts])
        return people.cells(flags == flag, pairs, judged)

    flagged, others = side(True), side(False)
    precision, kept = mismatched_share(flagged), mismatched_share(others)
    recall = found_share(flagged, others)
    audits = []
    for number, rule in enumerate(rules):
        clean, noisy = counts[number].expected.sum(axis=0)
        audits.append(
            RuleAudit(
                name=rule.title,
                flagged=int(flagged.pairs[number].sum()),
                answers=int(flagged.answered[number].sum()),
                precision=precision[number],
                recall=recall[number],
                kept=kept[number],
                expected_precision=_ratio(noisy, flagged.pairs[number].sum()),
                expected_recall=_ratio(noisy, noisy + clean),
                expected_kept=_ratio(clean, others.pairs[number].sum()),
            )
        )
    return tuple(audits)


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _strata(bounds: np.ndarray, cells: Cells, expected: np.ndarray) -> tuple[StratumAudit, ...]:
    ends = [0.0, *bounds.tolist(), 1.0]
    return tuple(
        StratumAudit(
            low=ends[number],
            high=ends[number + 1],
            pairs=int(cells.pairs[0, number]),
            answers=int(cells.answers[0, number].sum()),
            mismatched=int(cells.mismatched[0, number].sum()),
            expected_rate=_ratio(float(expected[number]), float(cells.pairs[0, number])),
        )
        for number in range(len(ends) - 1)
    )


def _expected(metadata: Mapping[str, str], summed: float) -> Estimate:
    """The noise rate that the table states, else the mean of its noise probabilities alone."""
    stated = Estimate.of_fields(metadata, "noise_rate")
    return stated if stated.is_known else Estimate(summed)
