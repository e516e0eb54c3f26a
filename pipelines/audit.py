"""`ncclean audit`: draw a sample of a corpus to judge, and measure by the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from ncclean.auditing.judge_answers import JudgeAnswers
from ncclean.base.formats import Table, counted, file_size
from ncclean.base.options import Option, Reads, Seed, check_unset, parameters
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError
from ncclean.judging.options import JudgeOptions

from .audit_judge import judged_figures, judged_lines, plan_lines
from .audit_measured import estimate, measured_lines
from .command import Command, Result, lists_tables_once
from .display import Note, Shown
from .progress import SILENT, Progress
from .shared_options import MemoryLimit, PageTitle, ScoredShards, Scores

if TYPE_CHECKING:
    from ncclean.auditing.audit import Audit as Measured
    from ncclean.judging.judged import Judged, JudgePlan
    from ncclean.report.audit_page import WrittenAudit

_OF_JUDGE = tuple(parameters(JudgeOptions))
_OF_PAGE = (
    "out", "shards", *parameters(SourceOptions), "pairs", "seed", "title", "overwrite", *_OF_JUDGE,
)  # fmt: skip
_MOST_ON_PAGE = 5_000
_MOST_JUDGED = 900_000  # DuckDB takes fewer than a million from one stratum
_OF_ANSWERS = ("sample", "selection", "partly", "cannot_tell", "width", "apply")


@dataclass(frozen=True, kw_only=True)
class Audit(Command):
    """Judge a sample of a corpus, and measure its noise rate and its rules.

    With --out: draws pairs, more where the noise probability is uncertain, and writes a page to
    judge them in a browser, and sample.parquet for other judges.

    With --out and --judge: asks a model on a server instead of a person, and writes judge.parquet.
    Interrupted runs resume.

    With --answers: measures the noise rate, and precision and recall of each rule, with 95 %
    intervals.

    Example: `ncclean audit scores.parquet --shards shards/ --pairs 300 --out audit/`
    """

    name = "audit"
    summary = "Judge a sample to measure the noise rate and the rules."
    resume_hint = "run the same command again to go on; the answers of a --judge are kept"
    is_stage = False  # a person answers in between

    scores: Scores
    out: Annotated[str | None, Option("Folder or URL for the page and the sample.")] = None
    shards: ScoredShards = ()
    source_options: SourceOptions = field(default_factory=SourceOptions)
    pairs: Annotated[
        int,
        Option(f"Pairs to judge, at most {_MOST_ON_PAGE:,} on a page.", low=10, high=_MOST_JUDGED),
    ] = 300
    seed: Seed = 0
    title: PageTitle = None
    judging: JudgeOptions = field(default_factory=JudgeOptions)
    answers: Annotated[
        Sequence[str],
        Option(
            "Answers to measure by: the page's file, or a table of uid and answer. "
            "With --out, do not draw these pairs again.",
            reads=Reads.PATH,
        ),
    ] = ()
    beside: JudgeAnswers = field(default_factory=JudgeAnswers)
    width: Annotated[
        float | None,
        Option(
            "Print how many answers an interval this wide needs, such as .02.", above=0.0, below=1.0
        ),
    ] = None
    sample: Annotated[
        str | None,
        Option(
            "The judged sample.parquet, if the table has been calibrated again since.",
            reads=Reads.TABLE,
        ),
    ] = None
    selection: Annotated[
        str | None, Option("Also measure what this selection keeps and drops.", reads=Reads.TABLE)
    ] = None
    partly: Annotated[
        Literal["match", "mismatch", "leave-out"],
        Option("Count `partly` as `match`, `mismatch` or `leave-out`."),
    ] = "match"
    cannot_tell: Annotated[
        Literal["leave-out", "match", "mismatch"],
        Option("Count `cannot tell` as `leave-out`, `match` or `mismatch`."),
    ] = "leave-out"
    apply: Annotated[bool, Option("Fit the table's noise probabilities to the answers.")] = False
    memory_limit: MemoryLimit = None
    overwrite: Annotated[
        bool,
        Option(
            "Replace existing output; with --judge, ask about every pair again.", in_recipes=False
        ),
    ] = False

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
        self._check_judge()
        if self.apply and len(self.scores) != 1:
            raise InputError("--apply takes one score table, the --out of `ncclean score`")

    def _check_judge(self) -> None:
        if self.judging.judge is None:
            check_unset(self, _OF_JUDGE, "needs --judge")
            if self.pairs > _MOST_ON_PAGE:
                raise InputError(
                    f"--pairs must be at most {_MOST_ON_PAGE:,} for a page, got {self.pairs:,}: "
                    "only --judge takes more"
                )
            return
        if self.answers or self.beside != JudgeAnswers():
            raise InputError(
                "--judge draws its own pairs: leave out --answers and the other --judge-... answers"
            )
        if self.judging.judge_model is None:
            raise InputError("--judge needs --judge-model, the model's name on the server")
        if not self.shards:
            raise InputError("--judge needs --shards: it looks at the pictures")
        check_unset(self, ("title",), "is for the page, and --judge writes none")

    @lists_tables_once
    def run(
        self, progress: Progress = SILENT
    ) -> Result[WrittenAudit] | Result[Measured] | Result[Judged] | Result[JudgePlan]:
        """Draw a sample and write the page to judge it, have it judged, or measure the answers."""
        if self.judging.judge is not None:
            return self._judge(progress)
        if self.out is not None:
            from ncclean.base import stores
            from ncclean.base.output_mark import check_free
            from ncclean.data.sources import resolve_pairs
            from ncclean.report.audit_page import PAGE, SAMPLE, write_audit

            folder = stores.location(self.out)
            check_free([str(folder / PAGE), str(folder / SAMPLE)], self.name, self.overwrite)
            written = write_audit(
                self.scores,
                self.out,
                shards=resolve_pairs(self.shards, self.source_options) if self.shards else None,
                pairs=self.pairs,
                seed=self.seed,
                judge=self.beside,
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
            measured_lines(audit, self.apply),
            figures={"noise rate": estimate(audit.noise), "answers": f"{audit.counted:,}"},
            made=[self.scores[0]] if self.apply else [],
            values={**audit.to_json(), "applied": self.apply},
        )

    def _judge(self, progress: Progress) -> Result[Judged] | Result[JudgePlan]:
        """Have a model judge the sample, or estimate the cost."""
        from ncclean.data.sources import resolve_pairs
        from ncclean.judging.run import JudgeSample

        assert self.out is not None
        judging = JudgeSample(
            scores=self.scores,
            shards=resolve_pairs(self.shards, self.source_options),
            out=self.out,
            options=self.judging,
            pairs=self.pairs,
            seed=self.seed,
            memory_limit=self.memory_limit,
            overwrite=self.overwrite,
        )
        if self.judging.dry_run:
            plan = judging.plan(progress)
            return self.result(plan, plan_lines(plan))
        judged = judging.run(progress)
        made = [judged.path] if judged.judged else []
        return self.result(
            judged, judged_lines(judged), figures=judged_figures(judged), made=made,
            is_empty=not judged.judged,
        )  # fmt: skip

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
            judge=self.beside,
            width=self.width,
            memory_limit=self.memory_limit,
        )
        if self.apply:
            from ncclean.base.config import CalibrationOptions
            from ncclean.execution.score_corpus import calibrate_again

            calibrate_again(self.scores[0], CalibrationOptions(), audit=audit, progress=progress)
        return audit


def _written_lines(written: WrittenAudit) -> Iterator[Shown]:
    heads = ("noise probability", "pairs", "to judge", "each stands for")
    rows = tuple(
        (f"{low:.3g} to {high:.3g}", f"{pairs:,}", f"{drawn:,}", f"{pairs / drawn:,.1f}")
        for low, high, pairs, drawn in written.strata
        if drawn
    )
    yield Table("Strata", heads, rows)
    yield f"{written.pairs:,} pairs to judge, {written.pictures:,} with a picture"
    if not written.pictures and not written.missing_shards:
        yield Note(
            "without --shards there are no pictures: the page shows captions and addresses; judges "
            "with pictures of their own take sample.parquet"
        )
    if written.missing_shards:
        missing = written.missing_shards
        yield Note(f"not among --shards: {counted(len(missing), 'shard')} (first: {missing[0]})")
    yield f"written to {written.page} ({file_size(written.bytes)}) and {written.sample}"
