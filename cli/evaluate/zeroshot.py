"""`ncclean evaluate zeroshot`."""

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
    results = evaluate_zeroshot(request, stage_printer(quiet))
    show_results(results, "Zero-shot classification", out, as_json=json_, quiet=quiet)
