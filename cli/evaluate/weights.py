"""`ncclean evaluate weights`."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import command
from ..options import JsonOption, QuietOption, SeedOption

if TYPE_CHECKING:
    from ncclean.evaluation.beliefs import WeightReport


@command()
def weights(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder of `finetune`.")],
    scores: Annotated[
        list[str] | None,
        typer.Option(help="Score table of the training pairs: what the estimator believed."),
    ] = None,
    shards: Annotated[
        list[str] | None,
        typer.Option("--shards", help="The training shards, if they have moved."),
    ] = None,
    precision: Annotated[str, typer.Option(help="`auto`, `fp32`, `bf16` or `fp16`.")] = "auto",
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`.")] = "auto",
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare what the methods believe about each training pair with the truth and one another.

    The beliefs of the trained model and of its selection go to `RUN/beliefs.parquet`: NCU's
    confidence and split, DisNCL's filter, the Bayesian weight, in batches like those of the
    training. AUROC is that of telling clean pairs from noisy ones.

    Example: `ncclean evaluate weights runs/bayes --scores scores.parquet`
    """
    from ncclean_pipelines.evaluate_weights import WeightsRequest, evaluate_weights

    request = WeightsRequest(
        run=run,
        scores=scores or [],
        shards=shards or [],
        precision=precision,
        device=device,
        seed=seed,
    )
    found = evaluate_weights(request)
    if json_:
        typer.echo(json.dumps(_without_nan(dataclasses.asdict(found))))
    elif not quiet:
        _print(found)


def _without_nan(value: Any) -> Any:
    """NaN has no JSON."""
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _print(found: WeightReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.width = max(console.width, 110)
    console.print(f"{found.pairs:,} pairs, {found.noisy:,} noisy")

    def shown(value: float) -> str:
        return "-" if math.isnan(value) else f"{value:.3f}"

    table = Table("belief", "AUROC", "mean, clean", "mean, noisy", box=SIMPLE_HEAD, show_edge=False)
    for each in found.beliefs:
        table.add_row(each.name, shown(each.auroc), shown(each.clean_mean), shown(each.noisy_mean))
    console.print(table)
    names = list(found.correlation)
    numbers = [str(place) for place in range(1, len(names) + 1)]
    ranks = Table("rank correlation", *numbers, box=SIMPLE_HEAD, show_edge=False)
    for number, name in zip(numbers, names, strict=True):
        ranks.add_row(f"{number} {name}", *(shown(v) for v in found.correlation[name].values()))
    console.print(ranks)
