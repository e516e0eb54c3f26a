"""`ncclean report`: render a score table, with images from shards, as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ncclean.auditing.judge_answers import JudgeAnswers
from ncclean.base.formats import counted, file_size, interval, stated_rate
from ncclean.base.options import Option, Reads
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError

from .command import Command, Result, lists_tables_once
from .display import Note, Shown, partner_lines
from .progress import SILENT, Progress
from .shared_options import Join, MemoryLimit, Overwrite, PageTitle, ScoredShards, Scores

if TYPE_CHECKING:
    from ncclean.report.write_report import WrittenReport


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Show what a score table says about a corpus, in one HTML file.

    Shows the cosines, the noise rate, a threshold to move, the worst, borderline and best pairs,
    the shards, the failures and the overlap of the rules. The file is smaller than 5 MB and needs
    no network.

    Example: `ncclean report scores.parquet --shards shards/ --out report.html`
    """

    name = "report"
    summary = "Show a score table as one HTML file."

    scores: Scores
    out: Annotated[str, Option("HTML file or URL.", inside="report.html")]
    shards: ScoredShards = ()
    source_options: SourceOptions = field(default_factory=SourceOptions)
    title: PageTitle = None
    pairs: Annotated[
        int,
        Option("Pairs to show of each group: worst, borderline, best, failed.", low=0, high=300),
    ] = 24
    figures: Annotated[
        str | None,
        Option(
            "Also write the plots here, as PDF, PNG and SVG.",
            metavar="DIR",
            inside="figures",
            extra="plots",
        ),
    ] = None
    audit: Annotated[
        Sequence[str],
        Option("Answers of `ncclean audit`, to show what they measure.", reads=Reads.PATH),
    ] = ()
    beside: JudgeAnswers = field(default_factory=JudgeAnswers)
    decisions: Annotated[
        Sequence[str], Option("Decisions of `ncclean review`, to count them.", reads=Reads.PATH)
    ] = ()
    causes: Annotated[
        str | None, Option("Output of `ncclean explain`, to show the causes.", reads=Reads.PATH)
    ] = None
    join: Join = ()
    memory_limit: MemoryLimit = None
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        super().__post_init__()
        shards = (".tar", ".tar.gz", ".tgz")
        if self.out.endswith((".parquet", *shards)):  # a slip that would cost a table or a shard
            raise InputError(f"--out takes an HTML file, got {self.out!r}")
        for path in self.scores:
            if path.endswith(shards):
                raise InputError(
                    f"{path} is a shard, not a score table: put quotes around the pattern after "
                    "--shards"
                )

    @lists_tables_once
    def run(self, progress: Progress = SILENT) -> Result[WrittenReport]:
        """Draw the report; see `ncclean.report.write_report`."""
        from ncclean.base.output_mark import check_free
        from ncclean.data.sources import resolve_pairs
        from ncclean.report.write_report import figure_paths, write_report

        check_free([self.out, *figure_paths(self.figures)], self.name, self.overwrite)
        written = write_report(
            self.scores,
            self.out,
            shards=resolve_pairs(self.shards, self.source_options) if self.shards else None,
            pairs=self.pairs,
            title=self.title,
            figures=self.figures,
            answers=self.audit,
            judge=self.beside,
            decisions=self.decisions,
            causes=self.causes,
            join=self.join,
            memory_limit=self.memory_limit,
            progress=progress,
        )
        return self.result(
            written,
            _summary(written),
            figures={"pairs shown": f"{len(written.page.pairs):,}"},
            made=[self.out, *written.figures],
        )


def _summary(written: WrittenReport) -> Iterator[Shown]:
    counts, run, page = written.numbers.counts, written.numbers.facts, written.page
    yield f"{counts.ok:,} of {counts.rows:,} pairs scored"
    if run.noise_rate.is_known:
        yield f"noise rate {stated_rate(run.noise_rate)}"
    if page.audit is not None and page.audit.noise.is_known:
        yield f"measured noise rate {interval(page.audit.noise)}"
        yield from map(Note, page.audit.disagreements)
    yield from partner_lines(written.numbers.partners, counts.rows)
    for sentence in written.numbers.missing:
        yield f"note: {sentence}"
    pictures = page.thumbnails.count(page.pairs) if page.thumbnails is not None else 0
    yield f"{len(page.pairs):,} pairs shown, {pictures:,} with a picture"
    if page.thumbnails is not None and page.thumbnails.missing_shards:
        missing = page.thumbnails.missing_shards
        yield f"note: not among --shards: {counted(len(missing), 'shard')} (first: {missing[0]})"
    yield f"written to {written.out} ({file_size(written.bytes)})"
    yield from (f"written to {path}" for path in written.figures)
