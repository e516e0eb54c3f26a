"""Options that the evaluations of models share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ncclean.evaluation.embedding import EmbeddingOptions

DEFAULT_PRETRAINED = "laion2b_s34b_b79k"

ModelsOption = Annotated[
    list[str],
    typer.Option("--model", help="Model, as `score` takes it; repeatable, for a column each."),
]
PretrainedOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Pretrained tag or checkpoint file of an open_clip name: one for all models, or one "
        f"for each (default: {DEFAULT_PRETRAINED})."
    ),
]
DataOption = Annotated[
    list[str],
    typer.Option(help="Set in clip_benchmark's layout, or a folder of such sets. Repeatable."),
]
OutOption = Annotated[
    str | None,
    typer.Option(
        "--out", "-o", help="Folder for the results, or a `.json` file where there is one."
    ),
]
BatchSizeOption = Annotated[int, typer.Option(help="Images per batch; changes no result.", min=1)]
PrecisionOption = Annotated[str, typer.Option(help="`auto`, `fp32`, `bf16` or `fp16`.")]
DeviceOption = Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`.")]
ThreadsOption = Annotated[
    int | None, typer.Option(help="Threads that decode (default: one per core).", min=1)
]


SpaceOption = Annotated[
    str,
    typer.Option(
        help="Of a model with DisNCL's heads: `invariant` (auto), `exclusive` or `joint`."
    ),
]


def embedding_options(batch_size: int, decode_threads: int | None) -> EmbeddingOptions:
    from ncclean.evaluation.embedding import EmbeddingOptions

    return EmbeddingOptions(
        batch_size=batch_size, decode_threads=decode_threads or os.cpu_count() or 1
    )
