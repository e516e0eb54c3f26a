"""`ncclean adapt`: warm up an estimator on the strictly clean pairs of a scored corpus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ncclean.base.config import DEFAULT_MODEL
from ncclean.base.options import Option, Reads
from ncclean.data.options import SourceOptions
from ncclean.storage.inputs import identity
from ncclean.training.options import AdaptOptions

from .command import Command, Result
from .display import Shown
from .progress import SILENT, Progress
from .shared_options import (
    Device,
    Overwrite,
    Precision,
    Preprocess,
    Pretrained,
    ScoredShards,
    Scores,
)

if TYPE_CHECKING:
    from ncclean.training.adapt import AdaptSummary


@dataclass(frozen=True, kw_only=True)
class Adapt(Command):
    """Warm an estimator up on the strictly clean pairs of a corpus (OSA's domain adaptation).

    A mixture model of the losses finds the pairs that are clean beyond doubt; both towers train on
    them for a few steps. Score with the result: `--model local-dir:OUT`.

    Example: `ncclean adapt scores.parquet --shards shards/ --out adapted/`
    """

    name = "adapt"
    summary = "Warm an estimator up on strictly clean pairs."
    resume_hint = "nothing was written; run the same command again"
    makes_model = True
    has_record = True

    scores: Scores
    shards: ScoredShards
    out: Annotated[str, Option("Folder of the adapted model.", inside="", local=True)]
    model: Annotated[
        str, Option("Model to adapt; preferably the one that scored.", reads=Reads.MODEL)
    ] = DEFAULT_MODEL
    pretrained: Pretrained = None
    preprocess: Preprocess = None
    source_options: SourceOptions = field(default_factory=SourceOptions)
    threshold: Annotated[
        float, Option("Train on pairs whose clean_posterior is above this.", low=0, below=1)
    ] = 0.9
    options: AdaptOptions = field(default_factory=AdaptOptions)
    precision: Precision = "auto"
    device: Device = "auto"
    overwrite: Overwrite = False

    def run(self, progress: Progress = SILENT) -> Result[AdaptSummary]:
        """Adapt the model and save it; see `ncclean.training.adapt.adapt_model`."""
        from ncclean.data.sources import resolve_pairs
        from ncclean.models.request import ModelRequest
        from ncclean.training.adapt import adapt_model

        adapted = adapt_model(
            ModelRequest(
                model=self.model,
                pretrained=self.pretrained,
                preprocess=self.preprocess,
                precision=self.precision,
                device=self.device,
            ),
            self.scores,
            resolve_pairs(self.shards, self.source_options),
            self.out,
            self.options,
            threshold=self.threshold,
            run=identity(self),
            overwrite=self.overwrite,
            progress=progress,
        )
        figures = {
            "strictly clean": f"{adapted.pairs:,}",
            "loss": f"{adapted.first_loss:.3f} to {adapted.last_loss:.3f}",
        }
        return self.result(adapted, _summary(adapted), figures=figures, made=[self.out])


def _summary(adapted: AdaptSummary) -> Iterator[Shown]:
    yield (
        f"{adapted.pairs:,} of {adapted.scored:,} pairs are strictly clean; loss "
        f"{adapted.first_loss:.3f} to {adapted.last_loss:.3f} in {adapted.steps} steps"
    )
    yield from (f"skipped: {count:,} {reason}" for reason, count in adapted.skipped.items())
    yield f"score with it: --model local-dir:{adapted.out}"
