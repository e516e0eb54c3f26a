"""`ncclean evaluate retrieval`."""

from __future__ import annotations

from ..errors import command
from ..options import JsonOption, QuietOption
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
    results = evaluate_retrieval(request, stage_printer(quiet))
    show_results(results, "Retrieval", out, as_json=json_, quiet=quiet)
