"""`ncclean score`."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import SOME_FAILED, command
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
from .progress import make_progress

if TYPE_CHECKING:
    from ncclean_pipelines.score import ScorePlan

    from ncclean.storage.summary import ScoreSummary


@command(resume_hint="run the same command again to resume; finished shards are kept")
def score(
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="`*.parquet` for one file, else a folder of parts."),
    ],
    shards: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SHARDS",
            help="Shards, folders, globs, brace ranges `{0000..0099}.tar`, `@list.txt` or URLs.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="open_clip name, `hf-hub:`, `local-dir:`, checkpoint file, `demo`, `demo-noisy`."
        ),
    ] = "ViT-B-32",
    pretrained: Annotated[
        str, typer.Option(help="Pretrained tag or checkpoint file of an open_clip name.")
    ] = "laion2b_s34b_b79k",
    caption_key: Annotated[
        str | None,
        typer.Option(
            help="Extension or json field of the caption (default: `.txt`, `.caption`, json)."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images per forward pass.", min=1)] = 256,
    block_size: Annotated[
        int, typer.Option(help="Pairs that in-batch statistics are taken over.", min=1)
    ] = 2048,
    forget_percent: Annotated[
        float, typer.Option(help="Share of a block in the NCU forget set.", min=0, max=100)
    ] = 10.0,
    shift: Annotated[
        str, typer.Option(help="Boundary of OSA: `noise`, `shuffled` or a cosine.")
    ] = "noise",
    precision: Annotated[
        str, typer.Option(help="`auto`, `fp32`, `bf16` or `fp16`; auto is bf16 where native.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`.")] = "auto",
    decode_threads: Annotated[
        int | None,
        typer.Option(help="Threads that decode images (default: one per core).", min=1),
    ] = None,
    decode_on: Annotated[
        str, typer.Option(help="Where JPEGs are decoded: `cpu`, or `device` (a GPU's decoder).")
    ] = "cpu",
    compile_: Annotated[
        bool, typer.Option("--compile", help="torch.compile the image tower; pays on GPUs alone.")
    ] = False,
    embeddings: Annotated[
        str | None,
        typer.Option(help="Also write embeddings here, as clip-retrieval lays them out."),
    ] = None,
    text: Annotated[bool, typer.Option("--text/--no-text", help="Write the captions.")] = True,
    engine: Annotated[
        str, typer.Option(help="`local`, `ray`; auto is ray with an address or several GPUs.")
    ] = "auto",
    ray_address: RayAddressOption = None,
    workers: WorkersOption = None,
    gpus_per_worker: GpusPerWorkerOption = None,
    cpus_per_worker: CpusPerWorkerOption = None,
    overwrite: OverwriteOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate pairs, speed and hours.")
    ] = False,
    finalize_only: Annotated[
        bool,
        typer.Option(
            "--finalize-only", help="Calibrate again, e.g. with another --shift; no model."
        ),
    ] = False,
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score every pair of webdataset shards into a Parquet table.

    Each sample gets one row: the cosine, OSA weight, NCU split, DisNCL filter, ranks and a
    calibrated probability of being mismatched, or the reason why it could not be scored.
    Interrupted runs resume.

    Example: `ncclean score shards/ --out scores.parquet`
    """
    from ncclean_pipelines.score import ScoreRequest, plan
    from ncclean_pipelines.score import finalize_only as refinalize
    from ncclean_pipelines.score import score as run

    from ncclean.config import ClusterOptions, ScoreOptions, parse_shift

    request = ScoreRequest(
        shards=shards or [],
        out=out,
        model=model,
        pretrained=pretrained,
        precision=precision,
        device=device,
        compiled=compile_,
        shift=parse_shift(shift),
        overwrite=overwrite,
        engine=engine,
        cluster=ClusterOptions(
            address=ray_address,
            workers=workers,
            gpus_per_worker=gpus_per_worker,
            cpus_per_worker=cpus_per_worker,
        ),
        options=ScoreOptions(
            caption_key=caption_key,
            block_size=block_size,
            forget_percent=forget_percent,
            text=text,
            seed=seed,
            batch_size=batch_size,
            decode_threads=decode_threads or os.cpu_count() or 1,
            decode_on=decode_on,
            embeddings=embeddings,
        ),
    )
    progress = make_progress(quiet)
    if dry_run:
        estimate = plan(request, progress)
        if json_:
            typer.echo(json.dumps(dataclasses.asdict(estimate)))
        else:
            _print_plan(estimate)
        return
    summary = refinalize(request, progress) if finalize_only else run(request, progress)
    if json_:
        typer.echo(json.dumps(summary.to_json()))
    elif not quiet:
        print_summary(summary)
    if summary.shards_failed:
        raise typer.Exit(SOME_FAILED)


def _print_plan(plan: ScorePlan) -> None:
    typer.echo(f"{plan.shards:,} shards, {plan.bytes / 1e6:,.1f} MB, about {plan.pairs:,} pairs")
    typer.echo(
        f"{plan.samples_per_second:,.0f} samples/s on {plan.device} in {plan.precision}"
        " (model only, one batch)"
    )
    unit = "GPU-hours" if plan.gpu_hours is not None else "hours of one worker"
    minutes = f" ({60 * plan.worker_hours:,.1f} minutes)" if plan.worker_hours < 1 else ""
    typer.echo(f"about {plan.worker_hours:,.2f} {unit}{minutes}")
    if plan.workers > 1:
        typer.echo(f"{plan.hours:,.2f} hours on {plan.workers} workers, all of them busy")
    typer.echo(
        f"{plan.read_bytes_per_second / 1e6:,.1f} MB/s to read, "
        f"about {plan.bytes_written / 1e6:,.1f} MB to write"
    )


def print_summary(summary: ScoreSummary) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("rows", f"{summary.rows:,}")
    table.add_row("ok", f"{summary.ok:,}")
    for status, count in summary.failures.items():
        table.add_row(status, f"{count:,}")
    table.add_row("shards", f"{summary.shards:,} ({summary.shards_failed:,} failed)")
    if summary.noise_rate is not None:
        table.add_row(
            "noise rate",
            f"{summary.noise_rate:.1%} "
            f"(95 % interval {summary.noise_rate_low:.1%} to {summary.noise_rate_high:.1%})",
        )
    table.add_row("shift", f"{summary.shift:.4f}")
    if summary.samples_per_second is not None:
        table.add_row(
            "speed", f"{summary.samples_per_second:,.0f} samples/s, {summary.seconds:,.1f} s in all"
        )
    table.add_row("written to", summary.out)
    console = Console(highlight=False)
    console.print(table)
    if summary.rows and not summary.ok:
        most = max(summary.failures, key=lambda name: summary.failures[name])
        hint = "; is --caption-key right?" if most == "caption_missing" else ""
        console.print(f"no pair could be scored: mostly {most}{hint}", style="red")
    for shard, reason in summary.failed_shards.items():
        console.print(f"failed: {shard}: {reason}", style="red", soft_wrap=True)
