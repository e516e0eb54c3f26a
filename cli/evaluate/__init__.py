"""`ncclean evaluate ...`: one command for each thing that can be measured."""

from __future__ import annotations

import typer

from .compare import compare
from .disentanglement import disentanglement
from .models import linear_probe, retrieval, zeroshot
from .noise import noise
from .similarity import similarity
from .weights import weights

evaluate = typer.Typer(
    name="evaluate",
    help="Measure what scores and models are worth.\n\n"
    "Example: `ncclean evaluate noise scores.parquet`",
    no_args_is_help=True,
)
for function in (
    noise,
    zeroshot,
    retrieval,
    linear_probe,
    compare,
    similarity,
    disentanglement,
    weights,
):
    evaluate.command()(function)
