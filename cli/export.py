"""`ncclean export`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import SOME_FAILED, command
from .options import JsonOption, OverwriteOption, QuietOption
from .progress import ShardProgress

if TYPE_CHECKING:
    from ncclean.selection.export import ExportSummary


@command(resume_hint="run the same command again to go on")
def export(
    selection: Annotated[str, typer.Argument(metavar="SELECTION", help="What `select` wrote.")],
    out: Annotated[
        str, typer.Option("--out", "-o", help="Folder of the shards, or a .npy file for the uids.")
    ],
    shards: Annotated[
        list[str] | None,
        typer.Option("--shards", help="The scored shards; may be given several times."),
    ] = None,
    samples_per_shard: Annotated[int, typer.Option(help="Samples of a shard.", min=1)] = 10_000,
    scores: Annotated[
        list[str] | None, typer.Option(help="Score files to add to each sample's json.")
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Columns of --scores to add, with commas between.")
    ] = "similarity,noise_probability,osa_weight,neg_clip_loss",
    repeat: Annotated[
        bool,
        typer.Option("--repeat", help="Write a sample as often as its weight says, 1 on average."),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes (default: one per core).", min=1)
    ] = None,
    overwrite: OverwriteOption = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write the selected samples as shards, copied byte for byte, or DataComp's uid file.

    Nothing is decoded or encoded again; keys and order stay. Interrupted exports resume.

    Example: `ncclean export clean.parquet --shards shards/ --out clean/`
    """
    from ncclean_pipelines.export import ExportRequest
    from ncclean_pipelines.export import export as run

    request = ExportRequest(
        selection=selection,
        out=out,
        shards=shards or [],
        samples_per_shard=samples_per_shard,
        scores=scores or [],
        columns=[name.strip() for name in columns.split(",") if name.strip()],
        repeat=repeat,
        workers=workers,
        overwrite=overwrite,
    )
    with ShardProgress("exporting", quiet) as progress:
        summary = run(request, lambda report: progress.done(report.samples, report.bytes))
    if json_:
        typer.echo(json.dumps(summary.to_json()))
    elif not quiet:
        _print(summary)
    if summary.errors or summary.missing:
        raise typer.Exit(SOME_FAILED)


def _print(summary: ExportSummary) -> None:
    what = f"{summary.shards:,} shards, " if summary.shards else ""
    typer.echo(f"{what}{summary.samples:,} samples, {summary.bytes / 1e6:,.1f} MB in {summary.out}")
    for name, count in summary.missing.items():
        typer.echo(f"missing: {count:,} selected samples are not in shard {name}")
    for name, reason in summary.errors.items():
        typer.echo(f"failed: {name}: {reason}")
