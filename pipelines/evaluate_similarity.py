"""`ncclean evaluate similarity`: show how far matched pairs stand above mismatched ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ncclean.base.formats import Table, decimal, share, skipped_counts
from ncclean.base.options import Option, Reads

from .command import Result
from .display import Shown
from .evaluate_models import ModelOptions
from .progress import SILENT, Progress
from .shared_options import plot_option

if TYPE_CHECKING:
    from ncclean.evaluation.similarity import ModelSimilarity


@dataclass(frozen=True, kw_only=True)
class EvaluateSimilarity(ModelOptions):
    """Show how far matched pairs stand above mismatched ones, before and after a repair.

    For each image: the cosine with its own captions, the mean with all others, and the mean with
    the hardest 5 % of the others, as in Fig. 5 of the NCU paper.

    Example: `ncclean evaluate similarity --model demo-noisy --against demo --data
    shards/heldout/retrieval --plot f.pdf`
    """

    name = "evaluate similarity"
    summary = "Show how far matched pairs stand above mismatched ones."

    model: Annotated[Sequence[str], Option("Model, as in `score`.", reads=Reads.MODEL)]
    data: Annotated[
        Sequence[str],
        Option("Retrieval set in clip_benchmark's layout, or shards.", reads=Reads.PATH),
    ]
    out: Annotated[str | None, Option("Folder for the result, `similarity.json`.", inside="")] = (
        None
    )
    against: Annotated[str | None, Option("The model after the repair.", reads=Reads.MODEL)] = None
    plot: Annotated[str | None, plot_option("similarity.pdf")] = None

    @property
    def models(self) -> Sequence[str]:
        """The models to compare, with that of `--against` last."""
        return self.model if self.against is None else [*self.model, self.against]

    def run(self, progress: Progress = SILENT) -> Result[list[ModelSimilarity]]:
        """Compare the models' cosines of matched and mismatched pairs, and plot them on request.

        Raises `InputError` if the data cannot be read or holds fewer than two images.
        """
        from ncclean.base.figure_files import write_figure
        from ncclean.base.output_mark import check_free
        from ncclean.evaluation.figures import draw_similarities
        from ncclean.evaluation.similarity import measure_similarity
        from ncclean.storage.run_folder import write_json

        out = f"{self.out.rstrip('/')}/similarity.json" if self.out is not None else None
        check_free([out, self.plot], self.name, self.overwrite)
        results = list(measure_similarity(self.requests(), self.data, self.embedding, progress))
        values = {"models": [result.to_json() for result in results]}
        files = []
        if self.plot is not None:
            models = [(result.label, result.cosines) for result in results]
            write_figure(draw_similarities(models), self.plot, self.name)
            files.append(self.plot)
        if out is not None:
            files.append(write_json(out, values, self.name))
        return self.result(results, _summary(results, files), made=files, values=values)


def _summary(results: Sequence[ModelSimilarity], files: Sequence[str]) -> Iterator[Shown]:
    rows = []
    for result in results:
        summary = result.cosines.summary()
        for row, (name, spread) in enumerate(
            (
                ("own captions", summary.positive),
                ("hardest 5 % of the others", summary.hardest),
                ("all others", summary.negative),
            )
        ):
            quantiles = (spread.quantiles[q] for q in ("q5", "q50", "q95"))
            values = (decimal(value) for value in (spread.mean, spread.std, *quantiles))
            rows.append(("" if row else result.label, name, *values))
    heads = ("model", "cosine with", "mean", "std", "5 %", "median", "95 %")
    yield Table("", heads, tuple(rows), left=2)
    for result in results:
        part = share(result.cosines.summary().above_hardest)
        yield f"{result.label}: own captions beat the hardest others for {part} of images"
        if result.skipped:
            yield f"left out for {result.label}: {skipped_counts(result.skipped)}"
    yield from (f"written to {path}" for path in files)
