"""`ncclean evaluate weights`: what each method believes about the training pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ncclean.options import Option, Reads, Seed

from .command import Command, Result
from .display import Shown, Table, decimal
from .progress import SILENT, Progress
from .shared_options import Device, Precision, Replace

if TYPE_CHECKING:
    from ncclean.evaluation.pair_weights import WeightReport


@dataclass(frozen=True, kw_only=True)
class EvaluateWeights(Command):
    """Compare what the methods believe about each training pair with the truth and one another.

    The beliefs of the trained model and of its selection go to `RUN/beliefs.parquet`: NCU's
    confidence and split, DisNCL's filter, the Bayesian weight, in batches like those of the
    training. AUROC is that of telling clean pairs from noisy ones.

    Example: `ncclean evaluate weights runs/bayes --scores scores.parquet`
    """

    name = "evaluate weights"
    summary = "What each method believes about the training pairs."
    is_stage = False

    run_folder: Annotated[
        str, Option("Run folder of `finetune`.", name="run", argument=True, metavar="RUN")
    ]
    scores: Annotated[
        Sequence[str],
        Option(
            "Score table of the training pairs, for what the estimator believed.", reads=Reads.TABLE
        ),
    ] = ()
    shards: Annotated[
        Sequence[str],
        Option("The training shards, if they have moved.", reads=Reads.SHARDS),
    ] = ()
    precision: Precision = "auto"
    device: Device = "auto"
    seed: Seed = 0
    overwrite: Replace = False

    def run(self, progress: Progress = SILENT) -> Result[WeightReport]:
        """Compute, write and compare; see `ncclean_pipelines.jobs.evaluate_weights`."""
        from .jobs.evaluate_weights import BELIEFS, compare

        report = compare(self, progress)
        folder = self.run_folder.removeprefix("local-dir:").rstrip("/")
        return self.result(report, _summary(report), made=[f"{folder}/{BELIEFS}"])


def _summary(report: WeightReport) -> Iterator[Shown]:
    yield f"{report.pairs:,} pairs, {report.noisy:,} noisy"
    rows = [
        (belief.name, *map(decimal, (belief.auroc, belief.clean_mean, belief.noisy_mean)))
        for belief in report.beliefs
    ]
    yield Table("", ("belief", "AUROC", "mean, clean", "mean, noisy"), tuple(rows))
    names = list(report.correlation)
    numbers = tuple(str(place) for place in range(1, len(names) + 1))
    ranks = [
        (f"{number} {name}", *map(decimal, report.correlation[name].values()))
        for number, name in zip(numbers, names, strict=True)
    ]
    yield Table("", ("rank correlation", *numbers), tuple(ranks))
