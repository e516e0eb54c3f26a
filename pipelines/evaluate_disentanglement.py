"""`ncclean evaluate disentanglement`: show what the halves of DisNCL's embeddings share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ncclean.base.formats import Table, decimal, share
from ncclean.base.options import Option, Reads, Seed
from ncclean.evaluation.options import EmbeddingOptions

from .command import Command, Result
from .display import Shown
from .progress import SILENT, Progress
from .shared_options import Device, Overwrite, Precision, plot_option

if TYPE_CHECKING:
    from ncclean.evaluation.disentanglement import Disentanglement


@dataclass(frozen=True, kw_only=True)
class EvaluateDisentanglement(Command):
    """Show what the invariant and the exclusive halves of a disncl model share.

    Mutual information between both halves (a lower bound, MINE), and recall at 1 with each, as in
    Fig. 4 of the DisNCL paper. Exclusive halves that were never aligned retrieve nothing, so they
    are also compared after a linear map.

    Example: `ncclean evaluate disentanglement --model local-dir:runs/disncl --data
    shards/heldout/retrieval --plot halves.pdf`
    """

    name = "evaluate disentanglement"
    summary = "Show what the halves of a disncl model share."

    model: Annotated[
        Sequence[str], Option("Run folder of `--method disncl`, as in `score`.", reads=Reads.MODEL)
    ]
    data: Annotated[
        Sequence[str],
        Option("Retrieval set in clip_benchmark's layout, or shards.", reads=Reads.PATH),
    ]
    out: Annotated[
        str | None, Option("Folder for the result, `disentanglement.json`.", inside="")
    ] = None
    plot: Annotated[str | None, plot_option("halves.pdf")] = None
    embedding: EmbeddingOptions = field(default_factory=EmbeddingOptions)
    precision: Precision = "auto"
    device: Device = "auto"
    seed: Seed = 0
    overwrite: Overwrite = False

    def run(self, progress: Progress = SILENT) -> Result[list[Disentanglement]]:
        """Embed in both spaces, compare the halves, and draw them on request."""
        from ncclean.base.figure_files import write_figure
        from ncclean.base.output_mark import check_free
        from ncclean.evaluation.disentanglement import measure_disentanglement
        from ncclean.evaluation.figures import draw_halves
        from ncclean.models.request import ModelRequest
        from ncclean.storage.run_folder import write_json

        out = f"{self.out.rstrip('/')}/disentanglement.json" if self.out is not None else None
        check_free([out, self.plot], self.name, self.overwrite)
        requests = [
            ModelRequest(model=model, precision=self.precision, device=self.device)
            for model in self.model
        ]
        results = list(
            measure_disentanglement(requests, self.data, self.embedding, self.seed, progress)
        )
        values = {"models": [result.to_json() for result in results]}
        files = []
        if self.plot is not None:
            write_figure(draw_halves(results, self.seed), self.plot, self.name)
            files.append(self.plot)
        if out is not None:
            files.append(write_json(out, values, self.name))
        return self.result(results, _summary(results, files), made=files, values=values)


def _summary(results: Sequence[Disentanglement], files: Sequence[str]) -> Iterator[Shown]:
    rows = [
        (
            result.model,
            decimal(result.image_information),
            decimal(result.text_information),
            *(share(value) for value in result.recall.values()),
            share(result.fitted),
            share(result.chance),
        )
        for result in results
    ]
    heads = (
        "model", "nats, images", "nats, captions", "recall, invariant", "exclusive", "fitted",
        "chance",
    )  # fmt: skip
    yield Table(f"Halves of {results[0].images:,} images", heads, tuple(rows), left=1)
    yield "fitted: the exclusive halves after a linear map, for which chance is twice as high"
    yield from (f"written to {path}" for path in files)
