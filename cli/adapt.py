"""`ncclean adapt`."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from .errors import SOME_FAILED, command
from .options import JsonOption, QuietOption, SeedOption
from .progress import StepProgress


@command()
def adapt(
    scores: Annotated[
        list[str], typer.Argument(metavar="SCORES", help="Score files of the corpus.")
    ],
    shards: Annotated[list[str], typer.Option("--shards", help="The scored shards.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder of the adapted model.")],
    model: Annotated[
        str, typer.Option(help="Model to adapt, as `score` takes it; best the one that scored.")
    ] = "ViT-B-32",
    pretrained: Annotated[
        str, typer.Option(help="Pretrained tag or checkpoint file of an open_clip name.")
    ] = "laion2b_s34b_b79k",
    threshold: Annotated[
        float, typer.Option(help="Least clean_posterior of the pairs to train on.", min=0, max=1)
    ] = 0.9,
    steps: Annotated[int, typer.Option(help="Optimiser steps.", min=1)] = 50,
    batch_size: Annotated[int, typer.Option(help="Pairs of a step.", min=2)] = 256,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-5,
    precision: Annotated[str, typer.Option(help="`auto`, `fp32`, `bf16` or `fp16`.")] = "auto",
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`.")] = "auto",
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Warm an estimator up on the strictly clean pairs of a corpus (OSA's domain adaptation).

    A mixture over the losses of all pairs tells which are clean beyond doubt; both towers train on
    them for a few steps. The result is a model for `score --model local-dir:OUT`.

    Example: `ncclean adapt scores.parquet --shards shards/ --out adapted/`
    """
    from ncclean_pipelines.adapt import AdaptRequest
    from ncclean_pipelines.adapt import adapt as run

    from ncclean.training.adapt import AdaptOptions

    request = AdaptRequest(
        scores=scores,
        shards=shards,
        out=out,
        model=model,
        pretrained=pretrained,
        precision=precision,
        device=device,
        threshold=threshold,
        options=AdaptOptions(
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            decode_threads=os.cpu_count() or 1,
            seed=seed,
        ),
    )
    with StepProgress("adapting", steps, batch_size, quiet) as progress:
        summary = run(request, progress.done)
    if json_:
        typer.echo(json.dumps(summary.to_json()))
    elif not quiet:
        typer.echo(
            f"{summary.pairs:,} of {summary.scored:,} pairs are strictly clean; loss "
            f"{summary.first_loss:.3f} to {summary.last_loss:.3f} in {summary.steps} steps"
        )
        typer.echo(f"score with it: --model local-dir:{summary.out}")
        for shard, reason in summary.failed_shards.items():
            typer.echo(f"failed: {shard}: {reason}", err=True)
    if summary.failed_shards:
        raise typer.Exit(SOME_FAILED)
