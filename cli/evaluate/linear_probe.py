"""`ncclean evaluate linear-probe`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import command
from ..options import JsonOption, QuietOption, SeedOption
from .options import (
    BatchSizeOption,
    DataOption,
    DeviceOption,
    ModelsOption,
    OutOption,
    PrecisionOption,
    PretrainedOption,
    SpaceOption,
    ThreadsOption,
    embedding_options,
)
from .tables import show_results, stage_printer


@command()
def linear_probe(
    model: ModelsOption,
    data: DataOption,
    pretrained: PretrainedOption = None,
    out: OutOption = None,
    solver: Annotated[str, typer.Option(help="`lbfgs` or `adamw`.")] = "lbfgs",
    epochs: Annotated[int, typer.Option(help="Passes of adamw.", min=1)] = 60,
    learning_rate: Annotated[float, typer.Option(help="First learning rate of adamw.")] = 3e-4,
    space: SpaceOption = "auto",
    batch_size: BatchSizeOption = 256,
    precision: PrecisionOption = "auto",
    device: DeviceOption = "auto",
    decode_threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a linear classifier on frozen image embeddings and measure it on the test images.

    `lbfgs` is CLIP's protocol, with the penalty chosen on a fifth of the training images; `adamw`
    is the schedule of NCU's supplement. Takes classification sets that have a `train` split.

    Example: `ncclean evaluate linear-probe --model demo --data shards/heldout`
    """
    from ncclean_pipelines.evaluate_model import (
        EvaluationRequest,
        evaluate_linear_probe,
        model_requests,
    )

    from ncclean.evaluation.linear_probe import ProbeOptions

    request = EvaluationRequest(
        models=model_requests(model, pretrained, precision, device, space),
        data=data,
        out=out,
        embedding=embedding_options(batch_size, decode_threads),
        probe=ProbeOptions(solver=solver, epochs=epochs, learning_rate=learning_rate, seed=seed),
    )
    results = evaluate_linear_probe(request, stage_printer(quiet))
    show_results(results, "Linear probe", out, as_json=json_, quiet=quiet)
