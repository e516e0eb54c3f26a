"""Measure a corpus by the answers of an audit: noise rate, precision and recall of each rule."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

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
        }


def measure(
    paths: Sequence[str],
    answers: str,
    *,
    sample: str | None = None,
    selection: str | None = None,
    partly: Counts = "match",
    cannot_tell: Counts = "leave-out",
    memory_limit: str | None = None,
) -> Audit:
    """Measure the noise rate and the rules of score files by the judgements in a file.

    `sample` is the `sample.parquet` that the answers are on. Without it, the strata are those that
    the answers name, else those of the table: they depend on it alone. `partly` and `cannot_tell`
    say what such answers count as. Raises `InputError` for answers on other pairs, and for a table
    whose strata are not those of the sample any more.
    """
    answered = read_answers(answers)
    design = read_design(sample) if sample is not None else answered.design
    metadata = table_metadata(table_files(paths)[0])
    audited = Audited.of_json(metadata.get("audited"))
    with AuditTable.open(paths, selection, memory_limit) as table:
        bounds = _bounds(table, design, audited, answered)
        counts = table.counts(bounds)
        pairs = counts[0].pairs.sum(axis=1)
        if design is not None and not np.array_equal(pairs, design.pairs):
            raise InputError(
                f"{sample or answers} is of another table, or of this one before it was calibrated "
                "again: its strata have other numbers of pairs. Draw a new sample"
            )
        rows = table.judged(bounds, {uid for uid, _ in answered.by_pair})
        rules, has_selection = table.rules, table.has_selection
    rows, of_rows = _answered(rows, answered)
    verdicts = [is_mismatched(answered.by_pair[pair], partly, cannot_tell) for pair in of_rows]
    counted = [place for place, verdict in enumerate(verdicts) if verdict is not None]
    if not counted:
        raise InputError(
            f"no answer in {answers} counts for a pair of {paths[0]}: are they about another table?"
        )
    rows = rows.take(pa.array(counted))
    mismatched = np.array([float(bool(verdicts[place])) for place in counted])
    stratum = rows.column("stratum").to_numpy()
    in_stratum = _by_cell(stratum, len(pairs))
    whole = Cells(
        *(array[None] for array in (pairs, in_stratum, _by_cell(stratum, len(pairs), mismatched)))
    )
    audits = _rules(rules, counts, rows, mismatched)
    expected = counts[0].expected.sum(axis=1)
    return Audit(
        pairs=int(pairs.sum()),
        counted=len(counted),
        given={kind: Counter(answered.by_pair.values())[kind] for kind in ANSWERS},
        unknown=len(answered.by_pair) - len(of_rows),
        repeated=answered.repeated,
        noise=mismatched_share(whole)[0],
        expected=_expected(metadata, float(expected.sum() / pairs.sum())),
        rules=audits[:-1] if has_selection else audits,
        selection=audits[-1] if has_selection else None,
        strata=_strata(bounds, whole, expected),
        judged=Judged(rows, mismatched, (pairs / np.maximum(in_stratum, 1))[stratum]),
        design=Design(bounds, pairs.astype(np.int64)),
        digest=answered.digest(),
        audited=audited,
    )


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


def _by_cell(cell: np.ndarray, cells: int, weights: np.ndarray | None = None) -> np.ndarray:
    return np.bincount(cell, weights, minlength=cells).astype(float)


def _rules(
    rules: Sequence[Rule], counts: Sequence[PairCounts], rows: pa.Table, mismatched: np.ndarray
) -> tuple[RuleAudit, ...]:
    """All rules at once: a row of cells for each."""
    stratum = rows.column("stratum").to_numpy()
    flags = np.stack([rows.column(f"f{n}").to_numpy() for n in range(len(rules))])
    strata = counts[0].pairs.shape[0]

    def side(flag: bool) -> Cells:
        mine = flags == flag
        return Cells(
            np.stack([sampled.pairs[:, int(flag)] for sampled in counts]),
            np.stack([_by_cell(stratum[of], strata) for of in mine]),
            np.stack([_by_cell(stratum[of], strata, mismatched[of]) for of in mine]),
        )

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
                answers=int(flagged.answers[number].sum()),
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
            answers=int(cells.answers[0, number]),
            mismatched=int(cells.mismatched[0, number]),
            expected_rate=_ratio(float(expected[number]), float(cells.pairs[0, number])),
        )
        for number in range(len(ends) - 1)
    )


def _expected(metadata: Mapping[str, str], summed: float) -> Estimate:
    """The noise rate that the table states, else the mean of its noise probabilities alone."""
    stated = Estimate.of_fields(metadata, "noise_rate")
    return stated if stated.is_known else Estimate(summed)
