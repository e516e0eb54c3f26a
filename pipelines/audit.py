"""`ncclean audit`: a sample of a corpus to judge, and what the answers say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from ncclean.auditing.judge_options import JudgeOptions
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError
from ncclean.options import Option, Reads, check_unset, parameters

from .command import Command, Result
from .display import Note, Shown, Table, file_size, interval, share
from .progress import SILENT, Progress
from .shared_options import MemoryLimit, PageTitle, PictureShards, Replace, Scores

if TYPE_CHECKING:
    from ncclean.auditing.audit import Audit as Measured
    from ncclean.auditing.audit import RuleAudit
    from ncclean.auditing.judge_audit import AnswersNeeded, JudgeAudit
    from ncclean.report.write_audit import WrittenAudit

_estimate = partial(interval, called="")
_OF_PAGE = ("out", "shards", *parameters(SourceOptions), "pairs", "seed", "title", "overwrite")
_OF_ANSWERS = ("sample", "selection", "partly", "cannot_tell", "width", "apply")


@dataclass(frozen=True, kw_only=True)
class Audit(Command):
    """Judge a sample of a corpus, and measure its noise rate and its rules.

    With --out: draws pairs, more where the noise probability is uncertain, and writes a page to
    judge them in a browser (1 match, 2 partly, 3 mismatch, 0 cannot tell, arrow left to go back)
    and sample.parquet for other judges.

    With --answers: the measured noise rate, and precision and recall of each rule, with 95 %
    intervals, next to what the calibration expected.

    Example: `ncclean audit scores.parquet --shards shards/ --pairs 300 --out audit/`
    """

    name = "audit"
    summary = "Judge a sample to measure the noise rate and the rules."
    is_stage = False  # a person answers in between

    scores: Scores
    out: Annotated[
        str | None, Option("Folder for the page, audit.html, and sample.parquet; may be a URL.")
    ] = None
    shards: PictureShards = ()
    source_options: SourceOptions = field(default_factory=SourceOptions)
    pairs: Annotated[int, Option("Pairs to judge.", low=10, high=5_000)] = 300
    seed: Annotated[int, Option("Random seed of the sample.", low=0)] = 0
    title: PageTitle = None
    answers: Annotated[
        Sequence[str],
        Option(
            "Answers to measure by: what the page saved, or any JSON, CSV or Parquet with `uid` "
            "and `answer`. With --out: leave these pairs out of the new sample. Repeatable.",
            reads=Reads.PATH,
        ),
    ] = ()
    judge_options: JudgeOptions = field(default_factory=JudgeOptions)
    width: Annotated[
        float | None,
        Option(
            "Also say how many answers an interval of this width takes (`.02`: two points).",
            above=0.0,
            below=1.0,
        ),
    ] = None
    sample: Annotated[
        str | None,
        Option(
            "The sample.parquet that was judged, if the answers come from another program and the "
            "table has been calibrated again since.",
            reads=Reads.TABLE,
        ),
    ] = None
    selection: Annotated[
        str | None,
        Option("Also measure this selection: what it keeps and what it drops.", reads=Reads.TABLE),
    ] = None
    partly: Annotated[
        Literal["match", "mismatch", "leave-out"],
        Option("What `partly` counts as: `match`, `mismatch` or `leave-out`."),
    ] = "match"
    cannot_tell: Annotated[
        Literal["leave-out", "match", "mismatch"],
        Option("What `cannot tell` counts as: `leave-out`, `match` or `mismatch`."),
    ] = "leave-out"
    apply: Annotated[
        bool, Option("Move the table's calibration to the answers, like `score --calibrate-with`.")
    ] = False
    memory_limit: MemoryLimit = None
    overwrite: Replace = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is None and not self.answers:
            raise InputError(
                "audit takes either --out, to draw a sample and write the page, or --answers, to "
                "measure by them"
            )
        if self.out is not None:
            why = "is for measuring: leave it out with --out" if self.answers else "needs --answers"
            check_unset(self, _OF_ANSWERS, why)
        else:
            check_unset(self, _OF_PAGE, "is for drawing a sample: it needs --out")
        if self.apply and len(self.scores) != 1:
            raise InputError("--apply takes one score table, the --out of `ncclean score`")

    def run(self, progress: Progress = SILENT) -> Result[WrittenAudit] | Result[Measured]:
        """Draw a sample and write the page to judge it, or measure the answers."""
        if self.out is not None:
            from ncclean import stores
            from ncclean.data.sources import resolve_pairs
            from ncclean.output_mark import check_free
            from ncclean.report.write_audit import PAGE, SAMPLE, write_audit

            folder = stores.location(self.out)
            check_free([str(folder / PAGE), str(folder / SAMPLE)], self.name, self.overwrite)
            written = write_audit(
                self.scores,
                self.out,
                shards=resolve_pairs(self.shards, self.source_options) if self.shards else None,
                pairs=self.pairs,
                seed=self.seed,
                judge=self.judge_options,
                answered=self.answers,
                title=self.title,
                memory_limit=self.memory_limit,
                progress=progress,
            )
            return self.result(
                written,
                _written_lines(written),
                figures={"pairs": f"{written.pairs:,}", "pictures": f"{written.pictures:,}"},
                made=[written.page, written.sample],
            )
        audit = self._measured(progress)
        return self.result(
            audit,
            _measured_lines(audit, self.apply),
            figures={"noise rate": _estimate(audit.noise), "answers": f"{audit.counted:,}"},
            made=[self.scores[0]] if self.apply else [],
            values={**audit.to_json(), "applied": self.apply},
        )

    def _measured(self, progress: Progress) -> Measured:
        """Measure the table by the answers; with `--apply`, move its calibration to them."""
        from ncclean.auditing.measure import measure

        progress.say("measuring")
        audit = measure(
            self.scores,
            self.answers,
            sample=self.sample,
            selection=self.selection,
            partly=self.partly,
            cannot_tell=self.cannot_tell,
            judge=self.judge_options,
            width=self.width,
            memory_limit=self.memory_limit,
        )
        if self.apply:
            from ncclean.config import CalibrationOptions
            from ncclean.execution.score_corpus import calibrate_again

            calibrate_again(self.scores[0], CalibrationOptions(), audit=audit, progress=progress)
        return audit


def _written_lines(written: WrittenAudit) -> Iterator[Shown]:
    heads = ("noise probability", "pairs", "to judge", "each stands for")
    rows = tuple(
        (f"{low:.3f} to {high:.3f}", f"{pairs:,}", f"{drawn:,}", f"{pairs / drawn:,.1f}")
        for low, high, pairs, drawn in written.strata
        if drawn
    )
    yield Table("Strata", heads, rows)
    yield f"{written.pairs:,} pairs to judge, {written.pictures:,} with a picture"
    if not written.pictures:
        yield Note(
            "without --shards there are no pictures: the page shows captions and addresses; judges "
            "with pictures of their own take sample.parquet"
        )
    if written.missing_shards:
        missing = written.missing_shards
        yield Note(f"{len(missing):,} shards are not among --shards (first: {missing[0]})")
    yield f"written to {written.page} ({file_size(written.bytes)}) and {written.sample}"


def _measured_lines(audit: Measured, applied: bool) -> Iterator[Shown]:
    answers = ", ".join(f"{count:,} {kind}" for kind, count in audit.given.items() if count)
    yield f"{audit.counted:,} answers on {audit.pairs:,} pairs: {answers}"
    if audit.unknown:
        yield Note(f"{audit.unknown:,} answers are on pairs that the table does not have")
    if audit.repeated:
        yield Note(f"{audit.repeated:,} answers were replaced by a later one on the same pair")
    rates = (_estimate(audit.noise), _estimate(audit.expected))
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
        f"that people judged; both agree on {_estimate(judge.agreement)}"
    )
    if judge.unknown:
        yield Note(f"{judge.unknown:,} of its answers are on pairs that the table does not have")
    yield Table(
        "The judge",
        ("people say", *(f"judge: {answer}" for answer in judge.confusion["match"])),
        tuple(
            (truth, *map(_estimate, shares.values())) for truth, shares in judge.confusion.items()
        ),
    )
    if judge.helps and judge.alone.is_known:
        yield f"by people alone, the noise rate is {_estimate(judge.alone)}"
    elif not judge.helps:
        yield Note("the judge makes the noise rate hardly more certain: it is by people alone")


def _needed_line(needed: AnswersNeeded) -> str:
    width = f"an interval of {100 * needed.width:.3g} points"
    alone = f"{needed.alone:,} answers of people" if needed.alone is not None else ""
    if needed.with_judge is None:
        return f"{width} takes about {alone} in all"
    line = f"{width} takes about {needed.with_judge:,} answers of people in all"
    if needed.of_judge is not None:
        line += f" and {needed.of_judge:,} of the judge"
    return line + (f" ({needed.alone:,} without the judge)" if alone else "")


def _rule_row(rule: RuleAudit) -> tuple[str, ...]:
    return (
        rule.name,
        f"{rule.flagged:,}",
        f"{rule.answers:,}",
        _estimate(rule.precision),
        share(rule.expected_precision),
        _estimate(rule.recall),
        share(rule.expected_recall),
    )


def _kept_row(rule: RuleAudit, pairs: int) -> tuple[str, ...]:
    negated = rule.name.removeprefix("not ")  # `not disncl_clean` flags what it keeps
    name = negated if negated != rule.name else f"not: {rule.name}"
    name = "the selection" if rule.name == "dropped" else name
    return name, f"{pairs - rule.flagged:,}", _estimate(rule.kept), share(rule.expected_kept)
