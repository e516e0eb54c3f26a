"""`ncclean demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .errors import SOME_FAILED, command
from .options import JsonOption, QuietOption, SeedOption


@command(resume_hint="run the same command again to go on")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.")] = Path("demo_run"),
    pairs: Annotated[int, typer.Option(help="Pairs to render.", min=100)] = 20_000,
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Render a noisy corpus, find the noise, and repair a model that was trained on such noise.

    The bundled recipe `demo`; needs no network. Prints what each score and each rule found of
    every kind of noise, what the model can do before, after, and beside an oracle that knows the
    truth, and three queries to start from.

    Example: `ncclean demo --out demo_run`
    """
    from ncclean_pipelines.demo import QUERIES, SCORES_FILE, demo_json, run_demo

    from ncclean.storage.catalog import query

    from .run import print_summary
    from .run_progress import make_run_progress

    with make_run_progress(quiet) as progress:
        result = run_demo(out, pairs, seed, progress)
    if json_:
        typer.echo(json.dumps(demo_json(result)))
    elif not quiet:
        print_summary(result)
        scores = str(out / SCORES_FILE)
        for sql in QUERIES:
            typer.echo(f'\n$ ncclean query "{sql}" {scores}')
            query(sql, [scores]).show(max_width=120)
    if result.failures:
        raise typer.Exit(SOME_FAILED)
