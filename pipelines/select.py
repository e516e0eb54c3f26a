"""`ncclean select`: apply a policy to a score table, and write a selection file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ncclean.auditing.judge_answers import JudgeAnswers
from ncclean.base.formats import Table, counted, interval, share
from ncclean.base.options import Option, Reads
from ncclean.errors import InputError
from ncclean.selection.policy import Policy

from .command import Command, Result, lists_tables_once
from .display import Note, Shown, partner_lines
from .progress import SILENT, Progress
from .shared_options import Decisions, Join, MemoryLimit, Overwrite, Scores

if TYPE_CHECKING:
    from ncclean.selection.select import SelectionSummary


@dataclass(frozen=True, kw_only=True)
class Select(Command):
    """Decide which pairs to keep, and with what weight.

    The filters apply in this order: status, --where and --exclude-causes, --dedup, --method,
    --threshold, --best-caption, --keep-fraction, --balance-by, --sample. Ties are broken by uid,
    so the same table gives the same selection. Prints what was dropped and why, and how many
    mismatched pairs to expect among the kept ones.

    Example: `ncclean select scores.parquet --method noise-probability --out clean.parquet`
    """

    name = "select"
    summary = "Decide which pairs to keep, and with what weight."

    scores: Scores
    out: Annotated[
        str,
        Option("Parquet file of the selection.", inside="selection.parquet", endings=(".parquet",)),
    ]
    policy: Policy = field(default_factory=Policy)
    dedup: Annotated[
        str | None,
        Option(
            "Output of `ncclean neighbours`: keep one pair of each group of near-duplicates.",
            reads=Reads.TABLE,
        ),
    ] = None
    audit: Annotated[
        Sequence[str],
        Option("Answers of `ncclean audit`, to measure the noise that is kept.", reads=Reads.PATH),
    ] = ()
    beside: JudgeAnswers = field(default_factory=JudgeAnswers)
    decisions: Decisions = ()
    exclude_causes: Annotated[
        str | None,
        Option("Output of `ncclean explain`: drop the pairs of these causes.", reads=Reads.PATH),
    ] = None
    causes: Annotated[
        Sequence[int], Option("Numbers of the causes to drop (default: all).", commas=True, low=1)
    ] = ()
    join: Join = ()
    memory_limit: MemoryLimit = None
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.causes and self.exclude_causes is None:
            raise InputError("--causes needs --exclude-causes, the table that they are in")

    @lists_tables_once
    def run(self, progress: Progress = SILENT) -> Result[SelectionSummary]:
        """Select pairs and write the selection; see `ncclean.selection.select.select`.

        Raises `InputError` if it would replace a table that it reads, or another command's file.
        """
        from ncclean.base import stores
        from ncclean.base.output_mark import check_free
        from ncclean.selection.select import select
        from ncclean.storage.column_names import JoinedFile
        from ncclean.storage.tables import check_apart, table_files

        beside = [JoinedFile.parse(table).path for table in self.join]
        beside += [self.dedup] if self.dedup is not None else []
        check_apart(self.out, self.decisions)
        check_free([self.out], self.name, self.overwrite)
        check_apart(self.out, table_files([*self.scores, *beside]))
        policy = self.policy
        if self.exclude_causes is not None:
            from ncclean.explaining.excluded import without_causes

            check_apart(self.out, [self.exclude_causes])
            policy = without_causes(
                policy, self.exclude_causes, self.scores, self.causes, self.join
            )
        progress.say("selecting")
        selected = select(
            self.scores,
            stores.location(self.out),
            policy,
            dedup=self.dedup,
            decisions=self.decisions,
            join=self.join,
            memory_limit=self.memory_limit,
        )
        if self.audit and selected.kept:
            progress.say("measuring by the answers")
            selected = self._measured(selected)
        figures = {"kept": f"{selected.kept:,} of {selected.rows:,}"}
        if selected.drawn is not None:
            figures["drawn"] = f"{selected.drawn:,}"
        if selected.expected_mismatched_kept is not None:
            wrong = "expected mismatched" if selected.parts is None else "expected with an error"
            figures[wrong] = f"{selected.expected_mismatched_kept:,.0f}"
        return self.result(
            selected,
            [*_summary(selected, self.policy.method), *self._no_rule()],
            figures=figures,
            made=[self.out],
            is_empty=not selected.kept,
        )

    def _no_rule(self) -> Iterator[Shown]:
        rules = (self.dedup, self.decisions, self.exclude_causes)
        if self.policy == Policy() and not any(rules):
            yield Note(
                "no rule was given, so every scored pair is kept: --method noise-probability drops "
                "the probably mismatched ones"
            )

    def _measured(self, selected: SelectionSummary) -> SelectionSummary:
        from ncclean.auditing.measure import measure

        audit = measure(
            self.scores,
            self.audit,
            selection=self.out,
            judge=self.beside,
            memory_limit=self.memory_limit,
        )
        assert audit.selection is not None
        return dataclasses.replace(selected, measured_noise_kept=audit.selection.kept)

    def table_columns(self) -> frozenset[str]:
        from ncclean.data.selection import COLUMNS

        return frozenset(COLUMNS)


def _summary(selected: SelectionSummary, method: str | None) -> Iterator[Shown]:
    def row(name: str, pairs: int, expected: float | None = None) -> tuple[str, ...]:
        part = share(pairs / selected.rows) if selected.rows else "-"
        return name, f"{pairs:,}", part, "" if expected is None else f"{expected:,.0f}"

    rows = [row("kept", selected.kept, selected.expected_mismatched_kept)]
    if selected.drawn is not None:
        rows.append(("  drawn", f"{selected.drawn:,}", "", ""))
    if selected.forget and method == "ncu":
        rows.append(row("  in NCU's forget set", selected.forget))
    rows.append(row("dropped", selected.dropped, selected.expected_mismatched_dropped))
    rows += [row(f"  {reason}", count) for reason, count in selected.dropped_by_reason.items()]
    wrong = "expected mismatched" if selected.captions_mended is None else "expected with an error"
    yield Table("", ("", "pairs", "share", wrong), tuple(rows))
    if selected.decided is not None:
        yield from decision_lines(selected)
    if selected.weight_sum != selected.kept:
        mean = selected.weight_sum / selected.kept if selected.kept else 0.0
        yield f"weights sum to {selected.weight_sum:,.1f}, mean {mean:.4f}"
    if (measured := selected.measured_noise_kept).is_known:
        rate = interval(measured, called="")
        yield f"measured {rate} mismatched among the kept, by the audit (95 % interval)"
    if selected.captions_mended is not None:
        dropped, parts = selected.parts_dropped or 0, selected.parts or 0
        yield mended_line(selected.captions_mended, dropped, parts)
    if not selected.kept:
        yield Note("nothing is kept: the selection is empty", "error")
    yield from partner_lines(selected.joined, selected.rows)
    yield f"written to {selected.out}"


def mended_line(captions: int, dropped: int, parts: int) -> str:
    """Return a line on how many captions lost how many of their sentences."""
    return f"{counted(captions, 'caption')} lost {dropped:,} of {counted(parts, 'sentence')}"


def decision_lines(selected: SelectionSummary) -> Iterator[Shown]:
    """Yield lines on how many pairs people decided about, and on which they differ."""
    counts = selected.decided or {}
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    yield f"{counted(sum(counts.values()), 'pair')} decided by people" + (kinds and f": {kinds}")
    if selected.decided_elsewhere:
        yield Note(
            f"{counted(selected.decided_elsewhere, 'decision')} on pairs that the table does not "
            "have"
        )
    if selected.decided_alike:
        yield Note(
            f"{counted(selected.decided_alike, 'pair')} share a decision with others of the same "
            "uid: check that it is right for each. A column `uid` that names something else, "
            "such as users, must be renamed before scoring; `ncclean export --fix shift` tells "
            "pairs by shard and key"
        )
    if selected.conflicts:
        first = selected.conflicting[0]
        said = ", ".join(f"{decision} by {who}" for decision, who in first.decisions)
        yield Note(
            f"{counted(selected.conflicts, 'pair')} decided differently in several files: the "
            f"later decision counts (first: {first.uid}, {said})"
        )
