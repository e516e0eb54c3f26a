"""`ncclean evaluate weights`: what each method believes about the training pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ncclean.errors import InputError
from ncclean.options import Option, Reads, Seed
from ncclean.url_secrets import HIDDEN

from .command import Command, Result, build
from .display import Shown, Table, decimal
from .finetune import Finetune
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
        """Compute, write and compare; see `ncclean.evaluation.run_beliefs`."""
        from ncclean.data.shards import resolve_shards
        from ncclean.evaluation.run_beliefs import BELIEFS, write_beliefs
        from ncclean.models.request import ModelRequest
        from ncclean.output_mark import check_free

        folder = self.run_folder.removeprefix("local-dir:").rstrip("/")
        trained = _trained(folder)
        if not self.shards and any(HIDDEN in shard for shard in trained.shards):
            raise InputError(
                f"{folder} does not keep the passwords of its --shards: name them again with "
                "--shards"
            )
        check_free([f"{folder}/{BELIEFS}"], self.name, self.overwrite)
        model = ModelRequest(
            model=f"local-dir:{folder}",
            pretrained=None,
            precision=self.precision,
            device=self.device,
            space="auto",
        )
        report = write_beliefs(
            trained.finetuning(),
            model,
            shards=resolve_shards(self.shards or trained.shards),
            scores=self.scores,
            seed=self.seed,
            command=self.name,
            progress=progress,
        )
        return self.result(report, _summary(report), made=[f"{folder}/{BELIEFS}"])


def _trained(folder: str) -> Finetune:
    """The command that made a run folder. Raises `InputError` if it is not one."""
    import yaml

    from ncclean.text_files import load_yaml, read_text
    from ncclean.training.finetune import PARAMS

    path = Path(folder, PARAMS)
    if not path.is_file():
        raise InputError(f"{folder} has no {PARAMS}: name the run folder of `ncclean finetune`")
    try:
        params = load_yaml(read_text(path), path)
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML") from error
    if not isinstance(params, dict):
        raise InputError(f"{path} does not hold the options of a run of `ncclean finetune`")
    params.pop("versions", None)
    return build(Finetune, {**params, "out": folder})


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
