"""`ncclean synth`: render a corpus with known noise, and held-out sets to evaluate on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from ncclean.base.formats import counted
from ncclean.base.options import Option, Seed
from ncclean.data.options import CorpusOptions
from ncclean.storage.inputs import identity

from .command import Command, Result
from .display import Shown
from .progress import SILENT, Progress
from .shared_options import Overwrite, Processes

if TYPE_CHECKING:
    from ncclean.execution.render_corpus import RenderedCorpus


@dataclass(frozen=True, kw_only=True)
class Synth(Command):
    """Render a corpus with known noise, and held-out sets to evaluate on.

    Scenes of shapes with captions, as webdataset shards; the truth about each pair is in its
    json. The same seed gives the same bytes.

    Example: `ncclean synth --out shards --pairs 20000 --noise 0.2 --broken 0.005`
    """

    name = "synth"
    summary = "Render a corpus with known noise, and held-out sets."
    resume_hint = "run the same command again to render it anew"
    has_record = True

    out: Annotated[str, Option("Folder of the shards.", metavar="PATH", inside="", local=True)]
    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    noise: Annotated[float, Option("Share of mismatched pairs.", low=0, high=1)] = 0.2
    kind: Annotated[
        Literal["ncr", "decl", "per_batch", "foreign_sentence", "added_detail"],
        Option(
            "`ncr`, `decl` or `per_batch` (whole pairs), `foreign_sentence` or "
            "`added_detail` (part of the caption)."
        ),
    ] = "ncr"
    hard: Annotated[float, Option("Share of captions with one wrong word.", low=0, high=1)] = 0.0
    junk: Annotated[float, Option("Share of captions that are boilerplate.", low=0, high=1)] = 0.0
    held_out: Annotated[int, Option("Images per held-out set in OUT/heldout.", low=0)] = 500
    workers: Processes = None
    seed: Seed = 0
    overwrite: Overwrite = False

    @property
    def options(self) -> CorpusOptions:
        """Return the options of the rendered corpus, with its noise and seed."""
        noise = {self.kind: self.noise, "hard": self.hard, "junk": self.junk}
        return dataclasses.replace(self.corpus, noise=noise, seed=self.seed)

    def run(self, progress: Progress = SILENT) -> Result[RenderedCorpus]:
        """Render the shards and the held-out sets; see `ncclean.execution.render_corpus`."""
        from ncclean.execution.render_corpus import render

        rendered = render(
            self.out,
            self.options,
            identity(self),
            held_out=self.held_out,
            workers=self.workers,
            overwrite=self.overwrite,
            progress=progress,
        )
        figures = {"pairs": f"{rendered.pairs:,}", "shards": f"{rendered.shards:,}"}
        return self.result(rendered, _summary(self, rendered), figures=figures, made=[self.out])


def _summary(command: Synth, rendered: RenderedCorpus) -> Iterator[Shown]:
    from ncclean.execution.render_corpus import HELD_OUT

    speed = f" ({rendered.pairs / rendered.seconds:,.0f} pairs/s)" if rendered.seconds else ""
    shards = counted(rendered.shards, "shard")
    yield f"{rendered.pairs:,} pairs in {shards} in {rendered.out}{speed}"
    if command.held_out:
        place = os.path.join(rendered.out, HELD_OUT)
        yield f"held-out sets of {command.held_out:,} images in {place}"
