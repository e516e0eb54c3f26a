"""`ncclean evaluate similarity`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import command
from ..options import JsonOption, QuietOption
from .options import (
    BatchSizeOption,
    DeviceOption,
    PrecisionOption,
    PretrainedOption,
    SpaceOption,
    ThreadsOption,
    embedding_options,
)
from .tables import make_table, print_table, stage_printer

if TYPE_CHECKING:
    from ncclean_pipelines.evaluate_similarity import ModelSimilarity


@command()
def similarity(
    model: Annotated[
        list[str],
        typer.Option("--model", help="Model, as `score` takes it; repeatable, for a panel each."),
    ],
    data: Annotated[
        list[str],
        typer.Option(help="Retrieval set in clip_benchmark's layout, or shards. Repeatable."),
    ],
    against: Annotated[
        str | None, typer.Option(help="The model afterwards, as a last `--model` would be.")
    ] = None,
    pretrained: PretrainedOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the figure to this `.png`, `.svg` or `.pdf`.")
    ] = None,
    space: SpaceOption = "auto",
    batch_size: BatchSizeOption = 256,
    precision: PrecisionOption = "auto",
    device: DeviceOption = "auto",
    decode_threads: ThreadsOption = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show how far matched pairs stand above mismatched ones, before and after.

    Of each image the cosine with its own captions, the mean with all others, and the mean with the
    hardest 5 % of the others: Fig. 5 of the NCU paper.

    Example: `ncclean evaluate similarity --model demo-noisy --against demo --data shards/heldout/retrieval --plot f.pdf`
    """  # noqa: E501
    from ncclean_pipelines.evaluate_model import model_requests
    from ncclean_pipelines.evaluate_similarity import SimilarityRequest, evaluate_similarity

    models = [*model, *([against] if against is not None else [])]
    request = SimilarityRequest(
        models=model_requests(models, pretrained, precision, device, space),
        data=data,
        plot=plot,
        embedding=embedding_options(batch_size, decode_threads),
    )
    found = evaluate_similarity(request, stage_printer(quiet))
    if json_:
        typer.echo(json.dumps({"models": [each.to_json() for each in found]}))
    elif not quiet:
        _print(found)
        if plot is not None:
            typer.echo(f"figure written to {plot}")


def _print(found: list[ModelSimilarity]) -> None:
    table = make_table("", "model", "cosine with", "mean", "std", "5 %", "median", "95 %")
    for each in found:
        summary = each.found.summary()
        for row, (name, facts) in enumerate(
            (
                ("own captions", summary.positive),
                ("hardest 5 % of the others", summary.hardest),
                ("all others", summary.negative),
            )
        ):
            quantiles = (facts.quantiles[q] for q in ("q5", "q50", "q95"))
            values = (facts.mean, facts.std, *quantiles)
            table.add_row("" if row else each.model, name, *(f"{v:.3f}" for v in values))
    print_table(table)
    for each in found:
        share = each.found.summary().above_hardest
        typer.echo(f"{each.model}: own captions beat the hardest others for {share:.1%} of images")
        if each.skipped:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in each.skipped.items())
            typer.echo(f"left out for {each.model}: {counts}")
