"""`ncclean explain`: find the causes of noise in a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ncclean.base.config import parse_keys
from ncclean.base.formats import Table, counted, interval, share
from ncclean.base.options import Option, Reads
from ncclean.explaining.options import ExplainOptions

from .command import Command, Result, lists_tables_once
from .display import Note, Shown, partner_lines
from .progress import SILENT, Progress
from .shared_options import EmbeddingKeys, Join, MemoryLimit, Overwrite, Scores

if TYPE_CHECKING:
    from ncclean.explaining.cause_table import Cause
    from ncclean.explaining.explain_scores import Explained

_LONGEST = 60  # characters of a group's name
_MOST = 10  # groups in the summary that are not causes


@dataclass(frozen=True, kw_only=True)
class Explain(Command):
    """Find causes of noise: groups of pairs that are wrong more often than others.

    A group has in common a word or phrase, a host or folder of the url, a shard, a language, a
    shape or length of caption, an image size, an image cluster, a word in a cluster, or a value of
    --by. Each cause comes with its share of wrong pairs, examples, and SQL for `query` and `select
    --where`. A group that another one explains is folded into it. Where the estimator may only be
    worse, a group is listed apart, not as a cause: --embeddings tell the two apart. With them, two
    more are found: words that stand for each other, as where two class folders were exchanged, and
    shifted captions, which `export --fix shift` shifts back.

    Example: `ncclean explain scores.parquet --embeddings embeddings/ --out causes.parquet`
    """

    name = "explain"
    summary = "Find causes of noise: groups that are wrong more often."
    resume_hint = "no causes were written; run the same command again"

    scores: Scores
    out: Annotated[
        str, Option("Parquet file of the causes.", inside="causes.parquet", endings=(".parquet",))
    ]
    embeddings: Annotated[
        Sequence[str],
        Option(
            "Embeddings: tell causes from groups that are only harder; find shifted captions "
            "(default: those that the run has written).",
            reads=Reads.SOURCE,
            shows_default=False,
        ),
    ] = ()
    embedding_keys: EmbeddingKeys = None
    options: ExplainOptions = field(default_factory=ExplainOptions)
    join: Join = ()
    memory_limit: MemoryLimit = None
    overwrite: Overwrite = False

    @lists_tables_once
    def run(self, progress: Progress = SILENT) -> Result[Explained]:
        """Find the causes; see `ncclean.explaining.explain_scores`."""
        from ncclean.explaining.explain_scores import explain_scores
        from ncclean.storage.layout import written_embeddings
        from ncclean.storage.tables import check_apart, table_files

        check_apart(self.out, table_files(self.scores))
        explained = explain_scores(
            self.scores,
            self.out,
            self.options,
            embeddings=self.embeddings or written_embeddings(self.scores),
            embedding_keys=parse_keys(self.embedding_keys),
            join=self.join,
            memory_limit=self.memory_limit,
            overwrite=self.overwrite,
            progress=progress,
        )
        beside = (explained.clusters, explained.fixes)
        made = [self.out, *(path for path in beside if path is not None)]
        figures = {"causes": f"{len(explained.causes):,}"}
        return self.result(explained, _summary(explained), figures=figures, made=made)

    def table_columns(self) -> frozenset[str]:
        from ncclean.base import schema

        return frozenset(schema.CAUSES.names)


def _summary(explained: Explained) -> Iterator[Shown]:
    from ncclean.base.visible_text import visible

    def group(cause: Cause) -> tuple[str, str, str, str]:
        text = visible(f"{cause.kind}: {cause.label}")
        name = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        return str(cause.number), name, cause.outcome, f"{cause.pairs:,}"

    if explained.unknown:
        names = " and ".join(f"by {name}" for name in explained.unknown)
        yield Note(
            f"which pairs are wrong {names} is not known, for the estimator cannot tell: causes of "
            "that are not found"
        )
    tested = f"{explained.tested:,} groups tested among {explained.pairs:,} pairs"
    if not explained.causes:
        yield f"{tested}: no cause stands out"
    else:
        yield tested
        rows = [
            (
                *group(cause),
                interval(cause.rate, called=""),
                share(cause.outside.value),
                f"{'' if cause.rate.is_known else '≥ '}{cause.excess:,.0f}",
            )
            for cause in explained.causes
        ]
        heads = ("", "cause", "wrong by", "pairs", "share wrong", "elsewhere", "explains")
        yield Table("", heads, tuple(rows), left=3)
        for cause in explained.causes:
            yield f"{cause.number}: {visible(cause.condition)}"
            if cause.proposal:
                yield f"   {visible(cause.proposal)}"
    if explained.uncertain:
        count = len(explained.uncertain)
        further = "" if explained.clusters else "score with --embeddings and explain with them, or "
        yield Note(
            f"{counted(count, 'group')} of pairs look{'s' if count == 1 else ''} wrong more often, "
            "but the estimator may only be worse there; not causes, as far as is known: "
            f"{further}audit these pairs"
        )
        yield Table(
            "",
            ("", "not a cause", "looks wrong by", "pairs", "share wrong"),
            tuple(
                (*group(one), interval(one.rate, called="") if one.is_rate_known else "not known")
                for one in explained.uncertain[:_MOST]
            ),
            left=3,
        )
        yield from (
            f"   {one.number}: {visible(one.proposal)}"
            for one in explained.uncertain[:_MOST]
            if one.proposal
        )
        if count > _MOST:
            yield f"{count - _MOST:,} more of these in {explained.out}"
    if explained.folded:
        yield f"{counted(len(explained.folded), 'group')} explained by these"
    if explained.left_out:
        yield Note(
            f"{explained.left_out:,} more groups stood out and were not compared: drop the causes, "
            "score again and explain what is left"
        )
    yield from partner_lines(explained.joined, explained.rows)
    if explained.clusters:
        yield f"clusters written to {explained.clusters}: --join clusters={explained.clusters}"
    if explained.fixed:
        yield (
            f"{counted(explained.fixed, 'pair')} of shifted captions: `ncclean export --fix shift "
            f"--causes {explained.out}`, or --decisions {explained.fixes}"
        )
    yield f"written to {explained.out}"
