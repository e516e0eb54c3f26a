"""The model evaluation stage: models on clip_benchmark's data sets, each result as JSON.

A model is loaded once and sees one data set after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ncclean.data.benchmark_sets import CLASSIFICATION, RETRIEVAL, BenchmarkSet, find_sets
from ncclean.errors import InputError
from ncclean.evaluation import outcomes
from ncclean.evaluation.embedding import (
    EmbeddingOptions,
    EmbeddingSpace,
    embed_classes,
    embed_dataset,
)
from ncclean.evaluation.linear_probe import ProbeOptions, fit_probe
from ncclean.evaluation.results import Evaluation, check_out, write_results
from ncclean.evaluation.retrieval import FOLD_IMAGES, FOLDS, fold_recall, retrieval_depths
from ncclean.evaluation.zeroshot import class_depth, classifier_weights
from ncclean.execution.engine import ModelRequest
from ncclean.models.estimator import Estimator

DEFAULT_PRETRAINED = "laion2b_s34b_b79k"
# Names of `recall_at_k` to those of clip_benchmark: an image is retrieved by a caption.
_DIRECTIONS = (
    ("text_to_image_R@", "image_retrieval_recall@"),
    ("image_to_text_R@", "text_retrieval_recall@"),
)


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """Which models to evaluate on which sets; `data` are sets or folders of sets.

    `out` is a folder for the results, or a `.json` file where there is one. Raises `InputError` if
    there is no model or a model is named twice.
    """

    models: Sequence[ModelRequest]
    data: Sequence[str]
    out: str | None = None
    embedding: EmbeddingOptions = field(default_factory=EmbeddingOptions)
    probe: ProbeOptions = field(default_factory=ProbeOptions)

    def __post_init__(self) -> None:
        if not self.models:
            raise InputError("name at least one --model")
        names = [(each.model, each.pretrained) for each in self.models]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"--model {twice[0]} is given twice")


def model_requests(
    models: Sequence[str],
    pretrained: Sequence[str] | None = None,
    precision: str = "auto",
    device: str = "auto",
    space: str = "auto",
) -> list[ModelRequest]:
    """One for each model; `space` is that of the embeddings where a model has DisNCL's heads.

    Raises `InputError` if the tags are neither one nor as many as the models.
    """
    tags = list(pretrained or [DEFAULT_PRETRAINED])
    tags = tags * len(models) if len(tags) == 1 else tags
    if len(tags) != len(models):
        raise InputError(
            f"{len(tags)} --pretrained for {len(models)} --model: give one, or one for each"
        )
    return [
        ModelRequest(model=model, pretrained=tag, precision=precision, device=device, space=space)
        for model, tag in zip(models, tags, strict=True)
    ]


Stage = Callable[[str], None]


def evaluate_zeroshot(
    request: EvaluationRequest, on_stage: Stage = lambda text: None
) -> list[Evaluation]:
    """Zero-shot classification with the prompts of each set.

    Raises `InputError` for a set that lacks a file or has a label without a class, `ModelError` for
    a model that cannot be loaded.
    """

    def run(estimator: Estimator, one: BenchmarkSet) -> Evaluation:
        def encode(prompts: list[str]) -> torch.Tensor:
            return estimator.encode_text(prompts, request.embedding.batch_size)

        names = one.classnames()
        weights = classifier_weights(encode, names, one.templates())
        found = embed_classes(estimator, one.shards("test"), len(names), request.embedding)
        depth = class_depth(found.image, weights, found.labels)
        table = outcomes.classification_outcomes(found, depth.cpu().numpy())
        return _evaluation(
            estimator, one, outcomes.ZEROSHOT, table, found.skipped, classes=len(names)
        )

    return _evaluate(request, CLASSIFICATION, ("test",), run, on_stage)


def evaluate_retrieval(
    request: EvaluationRequest, on_stage: Stage = lambda text: None
) -> list[Evaluation]:
    """Recall at 1, 5 and 10 in both directions, their sum, and MS-COCO's 1K test where it fits."""

    def run(estimator: Estimator, one: BenchmarkSet) -> Evaluation:
        return retrieval_of(estimator, estimator, one, request.embedding)

    return _evaluate(request, RETRIEVAL, ("test",), run, on_stage)


def retrieval_of(
    estimator: Estimator, space: EmbeddingSpace, one: BenchmarkSet, options: EmbeddingOptions
) -> Evaluation:
    """Retrieval in `space`, which is the estimator itself or an embedding space on top of it."""
    found = embed_dataset(space, one.shards("test"), options)
    depths = retrieval_depths(found.image, found.text, found.text_to_image)
    table = outcomes.retrieval_outcomes(found, depths)
    result = _evaluation(
        estimator, one, outcomes.RETRIEVAL, table, found.skipped, captions=len(found.text)
    )
    if len(found.image) < FOLDS * FOLD_IMAGES:
        return result
    folds = fold_recall(found.image, found.text, found.text_to_image)
    for ours, theirs in _DIRECTIONS:
        folds = {name.replace(ours, theirs): value for name, value in folds.items()}
    extra = {f"1k_{name}": value for name, value in folds.items()}
    return dataclasses.replace(result, metrics={**result.metrics, **extra})


def evaluate_linear_probe(
    request: EvaluationRequest, on_stage: Stage = lambda text: None
) -> list[Evaluation]:
    """A linear classifier on the image embeddings, trained on `train`, measured on `test`."""

    def run(estimator: Estimator, one: BenchmarkSet) -> Evaluation:
        names = one.classnames()
        train, test = (
            embed_classes(estimator, one.shards(split), len(names), request.embedding)
            for split in ("train", "test")
        )
        probe = fit_probe(train.image, train.labels, len(names), request.probe)
        depth = probe.depth(test.image, test.labels)
        table = outcomes.classification_outcomes(test, depth.cpu().numpy())
        skipped = dict(test.skipped)
        for reason, count in train.skipped.items():
            skipped[f"train_{reason}"] = count
        settings: dict[str, Any] = {"solver": request.probe.solver, "train_images": len(train.keys)}
        if probe.regularisation is not None:
            settings["regularisation"] = probe.regularisation
        else:
            settings |= dataclasses.asdict(request.probe)
        return _evaluation(
            estimator,
            one,
            outcomes.LINEAR_PROBE,
            table,
            skipped,
            classes=len(names),
            settings=settings,
        )

    return _evaluate(request, CLASSIFICATION, ("train", "test"), run, on_stage)


def _evaluate(
    request: EvaluationRequest,
    kind: str,
    splits: Sequence[str],
    run: Callable[[Estimator, BenchmarkSet], Evaluation],
    on_stage: Stage,
) -> list[Evaluation]:
    sets = find_sets(request.data, kind, splits)
    check_out(request.out, len(sets) * len(request.models))
    for one in sets:  # a missing shard must not come up after an hour
        for split in splits:
            one.shards(split)
    results = []
    for model in request.models:
        estimator = model.load()
        for one in sets:
            on_stage(f"{estimator.identity.model}: {one.name}")
            results.append(run(estimator, one))
    if request.out is not None:
        write_results(results, request.out)
    return results


def _evaluation(
    estimator: Estimator,
    one: BenchmarkSet,
    task: str,
    table: Any,
    skipped: dict[str, int],
    *,
    classes: int | None = None,
    captions: int | None = None,
    settings: dict[str, Any] | None = None,
) -> Evaluation:
    identity = estimator.identity
    metrics: dict[str, float | None] = {
        metric.name: float(metric.value()[0])
        for metric in outcomes.metrics_of(task, table, classes)
    }
    return Evaluation(
        dataset=one.name,
        model=identity.model,
        pretrained=identity.pretrained,
        task=task,
        metrics=metrics,
        images=len(table.column("image").unique()),
        captions=captions,
        classes=classes,
        skipped=skipped,
        settings=settings or {},
        fingerprint=identity.fingerprint,
        precision=identity.precision,
        outcomes=table,
    )
