"""`ncclean evaluate zeroshot`, `retrieval` and `linear-probe`: models on clip_benchmark's sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from ncclean_pipelines.evaluate_model import EvaluationRequest, Stage

    from ncclean.evaluation.results import Evaluation


@command()
def zeroshot(
    model: ModelsOption,
    data: DataOption,
    pretrained: PretrainedOption = None,
    out: OutOption = None,
    space: SpaceOption = "auto",
    batch_size: BatchSizeOption = 256,
    precision: PrecisionOption = "auto",
    device: DeviceOption = "auto",
    decode_threads: ThreadsOption = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Classify images by the prompts of each class: accuracy and mean recall per class.

    Takes classification sets in clip_benchmark's layout and writes what clip_benchmark writes, with
    the outcome of each image beside it for `evaluate compare`.

    Example: `ncclean evaluate zeroshot --model demo-noisy --model demo --data shards/heldout`
    """
    from ncclean_pipelines.evaluate_model import (
        EvaluationRequest,
        evaluate_zeroshot,
        model_requests,
    )

    request = EvaluationRequest(
        models=model_requests(model, pretrained, precision, device, space),
        data=data,
        out=out,
        embedding=embedding_options(batch_size, decode_threads),
    )
    _show(evaluate_zeroshot, request, "Zero-shot classification", as_json=json_, quiet=quiet)


@command()
def retrieval(
    model: ModelsOption,
    data: DataOption,
    pretrained: PretrainedOption = None,
    out: OutOption = None,
    space: SpaceOption = "auto",
    batch_size: BatchSizeOption = 256,
    precision: PrecisionOption = "auto",
    device: DeviceOption = "auto",
    decode_threads: ThreadsOption = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Retrieve captions by images and images by captions: recall at 1, 5 and 10.

    Takes retrieval sets in clip_benchmark's layout. From 5,000 images on, MS-COCO's 1K test is
    computed too, as the mean over five folds of 1,000 images.

    Example: `ncclean evaluate retrieval --model demo --data shards/heldout --out results/demo`
    """
    from ncclean_pipelines.evaluate_model import (
        EvaluationRequest,
        evaluate_retrieval,
        model_requests,
    )

    request = EvaluationRequest(
        models=model_requests(model, pretrained, precision, device, space),
        data=data,
        out=out,
        embedding=embedding_options(batch_size, decode_threads),
    )
    _show(evaluate_retrieval, request, "Retrieval", as_json=json_, quiet=quiet)


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
    _show(evaluate_linear_probe, request, "Linear probe", as_json=json_, quiet=quiet)


def _show(
    evaluate: Callable[[EvaluationRequest, Stage], list[Evaluation]],
    request: EvaluationRequest,
    title: str,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    results = evaluate(request, stage_printer(quiet))
    show_results(results, title, request.out, as_json=as_json, quiet=quiet)
