"""`ncclean finetune`."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any, cast

import typer

from .errors import SOME_FAILED, command
from .finetune_options import (
    AlignmentEpochsOption,
    BayesModeOption,
    DisentangleOption,
    DisnclVariantOption,
    FreezeTowersOption,
    MovingAverageOption,
    SetOption,
    disncl_options,
)
from .options import (
    CpusPerWorkerOption,
    GpusPerWorkerOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    RayAddressOption,
    SeedOption,
    WorkersOption,
)
from .progress import TrainingProgress


@command(resume_hint="run the same command with --resume to go on")
def finetune(
    shards: Annotated[
        list[str], typer.Option("--shards", help="Shards to train on; may be given several times.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder of the run and its model.")],
    method: Annotated[
        str,
        typer.Option(
            help="`clip`, `osa`, `ncu`, `bayes`, `disncl`, `gradient_ascent`, `softclip`, "
            "`cyclip`, `rince` or `decl`."
        ),
    ] = "clip",
    selection: Annotated[
        str | None, typer.Option(help="What `select` wrote: keys, weights, split.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model to train, as `score` takes it.")] = "ViT-B-32",
    pretrained: Annotated[
        str, typer.Option(help="Pretrained tag or checkpoint file of an open_clip name.")
    ] = "laion2b_s34b_b79k",
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the pairs (default: 5; ncu and disncl 8 and 10 in phase two).", min=1
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Pairs of a step, all GPUs together.", min=2)
    ] = 256,
    parts: Annotated[
        int, typer.Option(help="Parts of the batch to encode one by one; same gradient.", min=1)
    ] = 1,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Highest learning rate (default: 1e-5; ncu 5e-5; disncl's heads 2e-4)."),
    ] = None,
    forget_percent: Annotated[
        float,
        typer.Option(help="Share of a batch to forget (ncu, gradient_ascent).", min=0, max=100),
    ] = 10.0,
    split: Annotated[
        str, typer.Option(help="Who is forgotten: `model` (as it trains) or `table` (selection).")
    ] = "model",
    prompt_epochs: Annotated[
        int, typer.Option(help="Passes of ncu's first phase, which learns the prompt.", min=0)
    ] = 2,
    gamma: Annotated[
        float,
        typer.Option(help="Share of ncu's targets that transport decides.", min=0, max=1),
    ] = 0.7,
    negative: Annotated[
        str, typer.Option(help="ncu's negative text: a learnt `prompt`, or fixed `prefixes`.")
    ] = "prompt",
    relation: Annotated[
        str, typer.Option(help="ncu's relation of negatives: `cross`, `intra` or `distance`.")
    ] = "cross",
    unlearn: Annotated[
        str,
        typer.Option(help="What ncu unlearns: `both`, `false_negatives` or `false_positives`."),
    ] = "both",
    last_column: Annotated[
        str, typer.Option(help="Mass of ncu's negatives: `uniform` or `forget_share`.")
    ] = "uniform",
    normalize_weights: Annotated[
        bool, typer.Option("--normalize-weights", help="Scale osa's weights to mean 1 in a batch.")
    ] = False,
    bayes_mode: BayesModeOption = "paper",
    moving_average: MovingAverageOption = None,
    freeze_towers: FreezeTowersOption = False,
    alignment_epochs: AlignmentEpochsOption = 5,
    disentangle: DisentangleOption = True,
    disncl_variant: DisnclVariantOption = None,
    set_: SetOption = None,
    weight_decay: Annotated[float, typer.Option(help="Of matrices, not of gains.", min=0)] = 0.2,
    ema: Annotated[
        float | None, typer.Option(help="Decay of a moving average of the weights, such as 0.999.")
    ] = None,
    augment: Annotated[
        bool, typer.Option("--augment/--no-augment", help="Random crops, as open_clip trains.")
    ] = True,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, a forward pass more.")
    ] = False,
    compile_: Annotated[
        bool, typer.Option("--compile", help="torch.compile the image tower.")
    ] = False,
    save_steps: Annotated[
        int | None, typer.Option(help="Checkpoint every so many steps.", min=1)
    ] = None,
    save_minutes: Annotated[float, typer.Option(help="Checkpoint every so many minutes.")] = 10.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint of --out.")
    ] = False,
    overwrite: OverwriteOption = False,
    precision: Annotated[str, typer.Option(help="`auto`, `fp32`, `bf16` or `fp16`.")] = "auto",
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`.")] = "auto",
    engine: Annotated[
        str, typer.Option(help="`local`, or `ray` for Ray Train; auto is ray with an address.")
    ] = "auto",
    ray_address: RayAddressOption = None,
    workers: WorkersOption = None,
    gpus_per_worker: GpusPerWorkerOption = None,
    cpus_per_worker: CpusPerWorkerOption = None,
    decode_threads: Annotated[
        int | None, typer.Option(help="Threads that decode (default: one per core).", min=1)
    ] = None,
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a CLIP model on selected pairs, straight from the original shards.

    The run folder is the model: `--model local-dir:OUT` scores with it, open_clip loads it. Under
    `torchrun`, or with `--engine ray --workers N`, the batch is spread over the processes, and the
    loss is that of the whole batch.

    Example: `ncclean finetune --shards shards/ --selection clean.parquet --model demo --out runs/a`
    """
    from ncclean_pipelines.finetune import FinetuneRequest
    from ncclean_pipelines.finetune import finetune as run
    from ncclean_pipelines.recipe.settings import with_settings

    from ncclean.config import ClusterOptions
    from ncclean.data.weighted_loader import LoaderOptions
    from ncclean.training.objectives.bayes import BayesOptions
    from ncclean.training.objectives.ncu import NcuOptions
    from ncclean.training.objectives.registry import ObjectiveOptions
    from ncclean.training.trainer import TrainOptions

    request = FinetuneRequest(
        method=method,
        shards=shards,
        out=out,
        selection=selection,
        model=model,
        pretrained=pretrained,
        precision=precision,
        device=device,
        objective=ObjectiveOptions(
            learning_rate=learning_rate,
            epochs=epochs,
            normalize_weights=normalize_weights,
            prompt_epochs=prompt_epochs,
            ncu=NcuOptions(
                forget_percent=forget_percent,
                split=cast(Any, split),
                gamma=gamma,
                negative=cast(Any, negative),
                relation=cast(Any, relation),
                unlearn=cast(Any, unlearn),
                last_column=cast(Any, last_column),
            ),
            disncl=disncl_options(freeze_towers, alignment_epochs, disentangle, disncl_variant),
            bayes=BayesOptions(mode=cast(Any, bayes_mode), moving_average=moving_average),
        ),
        batch_size=batch_size,
        resume=resume,
        engine=engine,
        cluster=ClusterOptions(
            address=ray_address,
            workers=workers,
            gpus_per_worker=gpus_per_worker,
            cpus_per_worker=cpus_per_worker,
        ),
        overwrite=overwrite,
        loader=LoaderOptions(
            seed=seed, augment=augment, threads=decode_threads or os.cpu_count() or 1
        ),
        training=TrainOptions(
            parts=parts,
            weight_decay=weight_decay,
            ema_decay=ema,
            gradient_checkpointing=gradient_checkpointing,
            compiled=compile_,
            save_steps=save_steps,
            save_minutes=save_minutes,
            seed=seed,
        ),
    )
    request = with_settings("finetune", request, set_ or [])
    with TrainingProgress(quiet) as progress:
        summary = run(request, progress.step)
    if os.environ.get("RANK", "0") != "0":
        return
    if json_:
        typer.echo(json.dumps(summary.to_json()))
    elif not quiet:
        typer.echo(f"{summary.steps:,} steps, {summary.samples:,} samples with {summary.method}")
        if summary.first_loss is not None and summary.last_loss is not None:
            typer.echo(f"loss {summary.first_loss:.3f} to {summary.last_loss:.3f}")
        for reason, count in summary.skipped.items():
            typer.echo(f"skipped: {count:,} {reason}")
        typer.echo(f"the model: --model local-dir:{summary.out}")
        for shard, reason in summary.failed_shards.items():
            typer.echo(f"failed: {shard}: {reason}", err=True)
    if summary.failed_shards:
        raise typer.Exit(SOME_FAILED)
