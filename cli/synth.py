"""`ncclean synth`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from .errors import command
from .options import JsonOption, QuietOption, SeedOption


@command()
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
    from ncclean.data.noise import PERMUTING
    from ncclean.data.synthetic.corpus import CorpusOptions, write_corpus
    from ncclean.data.synthetic.heldout import write_heldout
    from ncclean.errors import InputError

    if kind not in PERMUTING:
        raise InputError(f"--kind takes one of {', '.join(PERMUTING)}, got {kind!r}")
    start = time.perf_counter()
    options = CorpusOptions(
        pairs=pairs,
        noise={kind: noise, "hard": hard, "junk": junk},
        broken=broken,
        duplicates=duplicates,
        shard_size=shard_size,
        seed=seed,
    )
    shards = write_corpus(out, options, workers)
    seconds = time.perf_counter() - start
    if held_out:
        write_heldout(out / "heldout", held_out, seed)
    if json_:
        result = {"out": str(out), "shards": len(shards), "pairs": pairs, "seconds": seconds}
        typer.echo(json.dumps(result))
    elif not quiet:
        speed = pairs / seconds
        typer.echo(f"{pairs:,} pairs in {len(shards)} shards in {out} ({speed:,.0f} pairs/s)")
        if held_out:
            typer.echo(f"held-out sets of {held_out:,} images in {out / 'heldout'}")
