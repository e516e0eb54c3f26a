"""`ncclean review`: go through pairs in a browser, and decide what becomes of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ncclean.base.config import parse_keys
from ncclean.base.formats import counted
from ncclean.base.options import Option, Reads
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError

from .command import Command, Result, lists_tables_once
from .display import Shown
from .progress import SILENT, Progress
from .shared_options import (
    EmbeddingKeys,
    Join,
    MemoryLimit,
    Overwrite,
    Pretrained,
    ScoredShards,
    Scores,
)

if TYPE_CHECKING:
    from ncclean.reviewing.serve import Reviewed

_MEMORY = "400MB"


@dataclass(frozen=True, kw_only=True)
class Review(Command):
    """Go through pairs in a browser: keep, drop or correct them.

    Starts a server on this machine and prints the address of its page. Each decision is saved at
    once. Finish with the page's button or Ctrl-C: --out then has the decisions, for `ncclean select
    --decisions`. Run the command again to continue.

    Example: `ncclean review scores.parquet --shards shards/ --out decisions.parquet`
    """

    name = "review"
    summary = "Keep, drop and correct pairs in a browser."
    is_stage = False

    scores: Scores
    out: Annotated[str, Option("Parquet file of the decisions.", endings=(".parquet",),
                               extra="review")]  # fmt: skip
    shards: ScoredShards = ()
    source_options: SourceOptions = field(default_factory=SourceOptions)
    join: Join = ()
    dedup: Annotated[
        str | None,
        Option(
            "Output of `ncclean neighbours`, to view near-duplicates and false negatives.",
            reads=Reads.TABLE,
        ),
    ] = None
    decisions: Annotated[
        Sequence[str],
        Option(
            "Decisions to start from: earlier ones, other people's, or a report page's.",
            reads=Reads.PATH,
        ),
    ] = ()
    embeddings: Annotated[
        Sequence[str],
        Option(
            "Embeddings, to search and to propose captions (default: those that the run has "
            "written).",
            reads=Reads.SOURCE,
            shows_default=False,
        ),
    ] = ()
    embedding_keys: EmbeddingKeys = None
    model: Annotated[
        str | None,
        Option(
            "Model of the embeddings, to search by words (default: the one that has scored).",
            reads=Reads.MODEL,
            shows_default=False,
        ),
    ] = None
    pretrained: Pretrained = None
    where: Annotated[
        str | None,
        Option(
            "SQL condition for the pairs to review.", metavar="SQL", sql_over=("scores", "join")
        ),
    ] = None
    reviewer: Annotated[
        str | None, Option("Who decides (default: the user's name).", shows_default=False)
    ] = None
    port: Annotated[int, Option("Port of the page; 0 takes a free one.", low=0, high=65535)] = 0
    browser: Annotated[bool, Option("Open the page in the browser.")] = True
    memory_limit: MemoryLimit = _MEMORY
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if "://" in self.out:
            raise InputError(f"--out takes a local file, to which each decision is synced, got "
                             f"{self.out}")  # fmt: skip
        if self.embedding_keys is not None and not self.embeddings:
            raise InputError("--embedding-keys needs --embeddings")

    @lists_tables_once
    def run(self, progress: Progress = SILENT) -> Result[Reviewed]:
        """Serve the page until it is finished; see `ncclean.reviewing.serve`."""
        from ncclean.base import stores
        from ncclean.base.output_mark import check_free, was_made_by
        from ncclean.data.embeddings.units import resolve_embeddings
        from ncclean.data.sources import resolve_pairs
        from ncclean.reviewing.serve import serve
        from ncclean.storage.layout import written_embeddings
        from ncclean.storage.tables import check_apart, table_files

        check_free([self.out], self.name, self.overwrite)
        check_apart(self.out, table_files(self.scores))
        is_ours = any(was_made_by(self.out, command) for command in (self.name, "explain"))
        embeddings = self.embeddings or written_embeddings(self.scores)
        progress.say("opening the table")
        joined = [*self.join, *([f"neighbours={self.dedup}"] if self.dedup is not None else [])]
        reviewed = serve(
            self.scores,
            stores.location(self.out),
            shards=resolve_pairs(self.shards, self.source_options) if self.shards else None,
            decisions=self.decisions,
            embeddings=resolve_embeddings(embeddings) if embeddings else None,
            embedding_keys=parse_keys(self.embedding_keys),
            model=self.model,
            pretrained=self.pretrained,
            join=joined,
            where=self.where,
            reviewer=self.reviewer,
            port=self.port,
            memory_limit=self.memory_limit,
            replaces=self.overwrite and not is_ours,
            announce=self._announce,
            progress=progress,
        )
        return self.result(
            reviewed,
            (*_summary(reviewed), *self._next()),
            figures={"decided": f"{reviewed.decided:,}"},
            made=[self.out],
        )

    def _next(self) -> Iterator[str]:
        """Return the commands that use the decisions."""
        words = ["ncclean", "select", *self.scores, "--method", "noise-probability"]
        words += ["--decisions", self.out, "--out", "selection.parquet"]
        yield f"next: {shlex.join(words)}"
        if self.shards:
            words = ["ncclean", "export", "selection.parquet", "--shards", *self.shards]
            yield f"then: {shlex.join([*words, '--layout', 'auto', '--out', 'mended/'])}"

    def _announce(self, url: str) -> None:
        """Say where the page is; standard output is left to `--json`."""
        print(f"review at {url}  (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if self.browser:
            import webbrowser

            webbrowser.open(url)


def _summary(reviewed: Reviewed) -> Iterator[Shown]:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in reviewed.by_decision.items())
    yield f"{counted(reviewed.decided, 'pair')} decided" + (f": {kinds}" if kinds else "")
    yield f"written to {reviewed.out}"
