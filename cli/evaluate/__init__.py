"""`ncclean evaluate ...`: one command for each thing that can be measured."""

from __future__ import annotations

import typer

from .disentanglement import disentanglement
from .noise import noise
from .weights import weights

evaluate = typer.Typer(
    name="evaluate",
    help="Measure what scores and models are worth.\n\n"
    "Example: `ncclean evaluate noise scores.parquet`",
    no_args_is_help=True,
)
evaluate.command()(noise)
evaluate.command()(disentanglement)
evaluate.command()(weights)
