"""`ncclean demo`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import command
from .options import JsonOption, QuietOption, SeedOption
from .progress import make_progress
from .score import print_summary

if TYPE_CHECKING:
    from ncclean_pipelines.demo import NoiseTable


@command(resume_hint="run the same command again to go on")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for shards and scores.")] = Path(
        "demo_run"
    ),
    pairs: Annotated[int, typer.Option(help="Pairs to render.", min=100)] = 20_000,
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Render a noisy corpus, score it with the bundled estimator, compare with the truth.

    Needs no network. Prints what each score and each rule found of every kind of noise, and
    three queries to start from.

    Example: `ncclean demo --out demo_run`
    """
    from ncclean_pipelines.demo import QUERIES, run_demo

    result = run_demo(out, pairs, seed, make_progress(quiet))
    if json_:
        found = {"summary": result.summary.to_json(), "noise": dataclasses.asdict(result.noise)}
        typer.echo(json.dumps(found))
        return
    if quiet:
        return
    print_summary(result.summary)
    _print_noise(result.noise)
    from ncclean.storage.catalog import query

    for sql in QUERIES:
        typer.echo(f'\n$ ncclean query "{sql}" {result.scores}')
        query(sql, [str(result.scores)]).show(max_width=120)


def _print_noise(noise: NoiseTable) -> None:
    from ncclean_pipelines.demo import KIND_NAMES
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    heads = [f"{KIND_NAMES[kind]} ({count:,})" for kind, count in noise.counts.items()]
    auroc = Table("score", *heads, title="\nAUROC against clean pairs", title_justify="left")
    for name, values in noise.auroc.items():
        auroc.add_row(name, *(f"{values[kind]:.3f}" for kind in noise.counts))
    console.print(auroc)
    rules = Table(
        "rule", *heads, "clean pairs", title="\nShare flagged as noisy", title_justify="left"
    )
    for name, shares in noise.caught.items():
        cells = (f"{shares[kind]:.1%}" for kind in noise.counts)
        rules.add_row(name, *cells, f"{noise.false_alarms[name]:.1%}")
    console.print(rules)
