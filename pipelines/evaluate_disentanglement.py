"""`ncclean evaluate disentanglement`: how far a disncl model keeps its halves apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ncclean.options import Option, Reads, Seed

from .command import Command, Result
from .display import Shown, Table, share
from .progress import SILENT, Progress
from .shared_options import Device, Precision, Replace, plot_option

if TYPE_CHECKING:
    from ncclean.evaluation.disentanglement import DisentanglementReport


@dataclass(frozen=True, kw_only=True)
class EvaluateDisentanglement(Command):
    """Measure how far a disncl model keeps apart what is shared and what is not.

    Mutual information between the halves (MINE), retrieval in each space, and for pairs that
    `synth` rendered, how well each fact can be read from each half (0 is chance, 1 is always) and
    how much of each half's variance it explains.

    Example: `ncclean evaluate disentanglement runs/disncl --shards heldout/ --plot halves.pdf`
    """

    name = "evaluate disentanglement"
    summary = "How far a disncl model keeps its halves apart."
    is_stage = False

    run_folder: Annotated[
        str,
        Option("Run folder of `--method disncl`.", name="run", argument=True, metavar="RUN"),
    ]
    shards: Annotated[
        Sequence[str],
        Option("Matched pairs that the model was not trained on.", reads=Reads.SHARDS),
    ]
    pairs: Annotated[int, Option("Maximum number of pairs to measure.", low=40)] = 2000
    plot: Annotated[str | None, plot_option()] = None
    precision: Precision = "auto"
    device: Device = "auto"
    seed: Seed = 0
    overwrite: Replace = False

    def run(self, progress: Progress = SILENT) -> Result[DisentanglementReport]:
        """Encode, measure and draw; see `ncclean.evaluation.run_heads`."""
        from pathlib import Path

        from ncclean.data.shards import resolve_shards
        from ncclean.evaluation.run_heads import measure_heads
        from ncclean.output_mark import check_free

        check_free([self.plot], self.name, self.overwrite)
        report = measure_heads(
            Path(self.run_folder.removeprefix("local-dir:")),
            resolve_shards(self.shards),
            pairs=self.pairs,
            plot=self.plot,
            precision=self.precision,
            device=self.device,
            seed=self.seed,
            progress=progress,
        )
        files = [self.plot] if self.plot is not None else []
        return self.result(report, _summary(report, files), made=files)


def _summary(report: DisentanglementReport, files: Sequence[str]) -> Iterator[Shown]:
    yield f"{report.pairs:,} pairs"
    for name, value in report.information.items():
        yield f"mutual information of {name}: {value:.3f} nats"
    recalls = ", ".join(f"{space} {share(value)}" for space, value in report.retrieval.items())
    yield f"recall at 1, mean of both directions: {recalls}; chance {share(report.chance)}"
    yield (
        "recall at 1, exclusive, after a linear map from image to caption: "
        f"{share(report.fitted_retrieval)}; chance {share(2 * report.chance)}"
    )
    if not report.facts:
        yield "the shards do not say what the pairs show: no facts to probe"
    else:
        halves = [half.replace("_", "\n") for half in report.facts[0].read_from]
        facts = [
            (fact.fact, fact.shown_by, *_cells(fact.read_from, ".2f")) for fact in report.facts
        ]
        title = "read by a linear probe: 0 is chance, 1 is always right"
        yield Table(title, ("fact", "shown by", *halves), tuple(facts), left=2)
        shares = [(side, *_cells(values, ".0%")) for side, values in report.composition.items()]
        yield Table("share of the variance that facts explain", ("facts", *halves), tuple(shares))
    yield from (f"figure written to {path}" for path in files)


def _cells(values: dict[str, float], form: str) -> list[str]:
    return ["-" if math.isnan(value) else format(value, form) for value in values.values()]
