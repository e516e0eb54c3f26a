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
    rich_markup_mode=None,
)
for function, summary in (
    (noise, "Compare scores and rules with the truth."),
    (zeroshot, "Classify images by prompts: accuracy."),
    (retrieval, "Captions by images and images by captions: recall."),
    (linear_probe, "A linear classifier on frozen embeddings: accuracy."),
    (compare, "Two models on the same data, with intervals."),
    (similarity, "How far matched pairs stand above mismatched ones."),
    (disentanglement, "How far a disncl model keeps its halves apart."),
    (weights, "What each method believes about the training pairs."),
):
    evaluate.command(short_help=summary)(function)
