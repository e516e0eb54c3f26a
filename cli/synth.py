"""`ncclean synth`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .errors import command
from .options import JsonOption, QuietOption, SeedOption


@command(resume_hint="remove what was written, then run the same command again")
def synth(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the shards.")],
    pairs: Annotated[int, typer.Option(help="Pairs to render.", min=1)] = 20_000,
    noise: Annotated[float, typer.Option(help="Share of mismatched pairs.", min=0, max=1)] = 0.2,
    kind: Annotated[
        str, typer.Option(help="How they are mismatched: `ncr`, `decl` or `per_batch`.")
    ] = "ncr",
    hard: Annotated[
        float, typer.Option(help="Share of captions with one wrong word.", min=0, max=1)
    ] = 0.0,
    junk: Annotated[
        float, typer.Option(help="Share of captions that are boilerplate.", min=0, max=1)
    ] = 0.0,
    broken: Annotated[
        float, typer.Option(help="Share of samples that cannot be scored.", min=0, max=1)
    ] = 0.0,
    duplicates: Annotated[
        float, typer.Option(help="Share of near-duplicates of earlier pairs.", min=0, max=1)
    ] = 0.01,
    shard_size: Annotated[int, typer.Option(help="Pairs per shard.", min=1)] = 1000,
    held_out: Annotated[
        int, typer.Option(help="Images per held-out set, in OUT/heldout; 0 for none.", min=0)
    ] = 500,
    workers: Annotated[
        int | None, typer.Option(help="Processes (default: one per core).", min=1)
    ] = None,
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Render a corpus with known noise, and held-out sets to evaluate on.

    Scenes of shapes with captions, as webdataset shards; the truth about each pair is in its
    json. The same seed gives the same bytes.

    Example: `ncclean synth --out shards --pairs 20000 --noise 0.2 --broken 0.005`
    """
    from ncclean_pipelines.synth import HELD_OUT, SynthRequest
    from ncclean_pipelines.synth import synth as run

    request = SynthRequest(
        out=str(out),
        pairs=pairs,
        noise=noise,
        kind=kind,
        hard=hard,
        junk=junk,
        broken=broken,
        duplicates=duplicates,
        shard_size=shard_size,
        held_out=held_out,
        workers=workers,
        seed=seed,
    )
    summary = run(request)
    if json_:
        typer.echo(json.dumps(summary.to_json()))
    elif not quiet:
        speed = summary.pairs / summary.seconds
        typer.echo(f"{pairs:,} pairs in {summary.shards} shards in {out} ({speed:,.0f} pairs/s)")
        if held_out:
            typer.echo(f"held-out sets of {held_out:,} images in {out / HELD_OUT}")
