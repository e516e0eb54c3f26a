"""`ncclean evaluate disentanglement`."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import command
from ..options import JsonOption, QuietOption, SeedOption

if TYPE_CHECKING:
    from ncclean.evaluation.disentanglement import DisentanglementReport


@command()
def disentanglement(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder of `--method disncl`.")],
    shards: Annotated[
        list[str], typer.Option("--shards", help="Matched pairs that it was not trained on.")
    ],
    pairs: Annotated[int, typer.Option(help="Pairs to measure at most.", min=40)] = 2000,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the figure to this `.png`, `.svg` or `.pdf`.")
    ] = None,
    precision: Annotated[str, typer.Option(help="`auto`, `fp32`, `bf16` or `fp16`.")] = "auto",
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`.")] = "auto",
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure how far a disncl model keeps apart what is shared and what is not.

    Mutual information between the halves (MINE), retrieval in each space, and for pairs that
    `synth` rendered, how well each fact can be read from each half (0 is chance, 1 is always) and
    how much of each half's variance it explains.

    Example: `ncclean evaluate disentanglement runs/disncl --shards heldout/ --plot halves.pdf`
    """
    from ncclean_pipelines.evaluate_disentanglement import (
        DisentanglementRequest,
        evaluate_disentanglement,
    )

    if plot is not None:
        from ncclean.evaluation.noise_figure import check_format

        check_format(plot)
    request = DisentanglementRequest(
        run=run, shards=shards, pairs=pairs, plot=plot,
        precision=precision, device=device, seed=seed,
    )  # fmt: skip
    found = evaluate_disentanglement(request)
    if json_:
        fields = dataclasses.asdict(found)
        for fact in fields["facts"]:
            fact["read_from"] = _finite(fact["read_from"])
        fields["composition"] = {k: _finite(v) for k, v in found.composition.items()}
        typer.echo(json.dumps(fields))
    elif not quiet:
        _print(found)
        if plot is not None:
            typer.echo(f"figure written to {plot}")


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    """NaN has no JSON."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _print(found: DisentanglementReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.width = max(console.width, 96)
    console.print(f"{found.pairs:,} pairs")
    for name, value in found.information.items():
        console.print(f"mutual information of {name}: {value:.3f} nats")
    recalls = ", ".join(f"{space} {value:.1%}" for space, value in found.retrieval.items())
    console.print(f"recall at 1, mean of both directions: {recalls}; chance {found.chance:.1%}")
    if not found.facts:
        console.print("the shards do not say what the pairs show: no facts to probe")
        return
    parts = [part.replace("_", "\n") for part in found.facts[0].read_from]
    table = Table("fact", "shown by", *parts, box=SIMPLE_HEAD, show_edge=False)
    for each in found.facts:
        table.add_row(each.fact, each.shown_by, *_cells(each.read_from, ".2f"))
    console.print("\nread by a linear probe: 0 is chance, 1 is always right")
    console.print(table)
    table = Table("facts", *parts, box=SIMPLE_HEAD, show_edge=False)
    for side, shares in found.composition.items():
        table.add_row(side, *_cells(shares, ".0%"))
    console.print("\nshare of the variance that facts explain")
    console.print(table)


def _cells(values: dict[str, float], form: str) -> list[str]:
    return ["-" if math.isnan(value) else format(value, form) for value in values.values()]
