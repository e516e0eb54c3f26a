"""Measure a corpus by an audit's answers: noise rate, precision and recall of each rule."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ncclean.auditing.answers import (
    ANSWERS,
    TEXT,
    Answered,
    Answers,
    Counts,
    Design,
    Pair,
    is_mismatched,
    read_answers,
)
from ncclean.auditing.audit import Audit, Judged, RuleAudit, StratumAudit
from ncclean.auditing.intervals import Cells, found_share, mismatched_share
from ncclean.auditing.judge import Judge
from ncclean.auditing.judge_answers import NO_JUDGE, JudgeAnswers
from ncclean.auditing.judge_audit import answers_needed, audit_judge
from ncclean.auditing.sample import read_design
from ncclean.auditing.table import AuditTable
from ncclean.auditing.table import Counts as PairCounts
from ncclean.base.estimates import Estimate
from ncclean.base.rules import Rule
from ncclean.errors import InputError
from ncclean.scoring.recalibration import Audited
from ncclean.storage.run_facts import read_facts

logger = logging.getLogger(__name__)


def measure(
    paths: Sequence[str],
    answers: str | Sequence[str],
    *,
    sample: str | None = None,
    selection: str | None = None,
    partly: Counts = "match",
    cannot_tell: Counts = "leave-out",
    judge: JudgeAnswers = NO_JUDGE,
    width: float | None = None,
    memory_limit: str | None = None,
) -> Audit:
    """Measure the noise rate and the rules of score files by the judgements in files.

    `sample` is the `sample.parquet` that was answered. Without it, the strata are those that the
    answers name, else those of the table, which depend only on it. `partly` and `cannot_tell` say
    what such answers count as. With a `judge`, its answers on many pairs, corrected by people's on
    a few, make the figures more certain (two-phase sampling); they are valid whatever the judge
    says, if its pairs are a random sample of each stratum, or all. `width` is the interval width
    for which to estimate the needed answers.

    Raises `InputError` for answers on other pairs, and for a table whose strata no longer match the
    sample's.
    """
    named = [answers] if isinstance(answers, str) else list(answers)
    answered = read_answers(*named)
    design = read_design(sample) if sample is not None else answered.design
    # A draw guided by the judge's answers counts them as they were drawn; otherwise any count will
    # do.
    readings: tuple[Counts, Counts] = (partly, cannot_tell)
    if design is not None and design.judged is not None:
        readings = ("match", "leave-out")
    by_judge = Judge.read(judge, *readings)
    design = _of_judge(design, by_judge, named[0])
    facts = read_facts(paths)
    audited = facts.audited
    with AuditTable.open(paths, selection, memory_limit, by_judge) as table:
        bounds = _bounds(table, design, audited, answered)
        counts = table.counts(bounds)
        _check_design(design, counts[0], sample or named[0])
        rows = table.judged(bounds, {uid for uid, _ in answered.by_pair})
        rules, has_selection, judge_name = table.rules, table.has_selection, table.judge
    uids = set(rows.column("uid").to_pylist())
    rows, of_rows = _answered(rows, answered)
    _check_captions(rows, of_rows, answered, named[0])
    verdicts = [is_mismatched(answered.by_pair[pair], partly, cannot_tell) for pair in of_rows]
    counted = [place for place, verdict in enumerate(verdicts) if verdict is not None]
    if not counted:
        raise InputError(
            f"no answer in {named[0]} counts for a pair of {paths[0]}: are they about another "
            "table?"
        )
    # Answers by uid alone on a pair that another answer names with its caption.
    overtaken = sum(
        number is None and uid in uids for uid, number in set(answered.by_pair).difference(of_rows)
    )
    kinds = Counter(answered.by_pair[pair] for pair in of_rows)
    rows = rows.take(pa.array(counted))
    people = Answered(
        strata=len(bounds) + 1,
        stratum=rows.column("stratum").to_numpy(),
        mismatched=np.array([float(bool(verdicts[place])) for place in counted]),
        judge=rows.column("judge").fill_null(-1).to_numpy().astype(int) if judge_name else None,
        drawn_by_judge=design is not None and design.judged is not None,
    )
    pairs, judged = counts[0].pairs.sum(axis=1), counts[0].judged.sum(axis=1)
    whole = people.cells(np.ones((1, len(counted)), bool), pairs[None], judged[None])
    noise = mismatched_share(whole)[0]
    beside = None
    if by_judge is not None and judge_name is not None:
        asked = by_judge.answers.by_pair if by_judge.answers is not None else ()
        beside = audit_judge(judge_name, people, whole, noise, int(judged.sum()), len(asked))
    audits = _rules(rules, counts, rows, people)
    expected = counts[0].expected.sum(axis=1)
    with_judge = beside is not None and beside.helps
    return Audit(
        pairs=int(pairs.sum()),
        counted=len(counted),
        given={kind: kinds[kind] for kind in ANSWERS},
        unknown=len(answered.by_pair) - len(of_rows) - overtaken,
        repeated=answered.repeated + overtaken,
        noise=noise,
        expected=_expected(facts.noise_rate, float(expected.sum() / pairs.sum())),
        rules=audits[:-1] if has_selection else audits,
        selection=audits[-1] if has_selection else None,
        strata=_strata(bounds, whole, expected),
        judged=Judged(rows, people.mismatched, people.weights(whole, with_judge)),
        design=Design(bounds, pairs.astype(np.int64)),
        digest=answered.digest(),
        audited=audited,
        judge=beside,
        needed=answers_needed(whole, noise, width, beside) if width is not None else None,
    )


def _check_design(design: Design | None, counts: PairCounts, path: str) -> None:
    """Raise `InputError` if the table's strata are not those that a sample was drawn from."""
    if design is None:
        return
    if not np.array_equal(counts.pairs.sum(axis=1), design.pairs):
        raise InputError(
            f"{path} is of another table, or of this one before it was calibrated again: its "
            "strata have other sizes. Draw a new sample"
        )
    if design.judged is not None and not np.array_equal(counts.judged.sum(axis=1), design.judged):
        raise InputError(f"the pairs of {path} were drawn by other answers of a judge: give those")


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
    """Return the strata's bounds by the table's present noise probabilities."""
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
    """Return the first row of each answered pair, and the pairs.

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


def _check_captions(rows: pa.Table, pairs: Sequence[Pair], answers: Answers, path: str) -> None:
    """Log a warning if answers state other captions than the table has under their uids.

    Only blanks may differ, as other programs change them.
    """
    others = [
        pair[0]
        for pair, text in zip(pairs, rows.column(TEXT).to_pylist(), strict=True)
        if text is not None and answers.texts.get(pair, text).split() != text.split()
    ]
    if others:
        logger.warning(
            "%s: of %d answers, %d are about another caption than the table has (first: uid %s), "
            "as those on another corpus",
            path,
            len(pairs),
            len(others),
            others[0],
        )


def _rules(
    rules: Sequence[Rule], counts: Sequence[PairCounts], rows: pa.Table, people: Answered
) -> tuple[RuleAudit, ...]:
    """Return all rules at once: a row of cells for each."""
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


def _expected(stated: Estimate, summed: float) -> Estimate:
    """Return the noise rate that the table states, else the mean of its noise probabilities."""
    return stated if stated.is_known else Estimate(summed)
