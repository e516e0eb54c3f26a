"""Models on clip_benchmark's data sets: a model is loaded once and sees one set after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ncclean.data.benchmark_sets import CLASSIFICATION, RETRIEVAL, BenchmarkSet, find_sets
from ncclean.evaluation import outcomes
from ncclean.evaluation.embedding import (
    EmbeddingSpace,
    embed_classes,
    embed_dataset,
)
from ncclean.evaluation.linear_probe import fit_probe
from ncclean.evaluation.options import EmbeddingOptions
from ncclean.evaluation.results import Evaluation, check_out, write_results
from ncclean.evaluation.retrieval import FOLD_IMAGES, FOLDS, fold_recall, retrieval_depths
from ncclean.evaluation.zeroshot import class_depth, classifier_weights
from ncclean.execution.engine import ModelRequest
from ncclean.models.estimator import Estimator

from ..evaluate_models import (
    EvaluateLinearProbe,
    EvaluateRetrieval,
    ModelEvaluation,
    ModelOptions,
)
from ..progress import Progress

# Names of `recall_at_k` to those of clip_benchmark: an image is retrieved by a caption.
_DIRECTIONS = (
    ("text_to_image_R@", "image_retrieval_recall@"),
    ("image_to_text_R@", "text_retrieval_recall@"),
)


def evaluate(command: ModelEvaluation, progress: Progress) -> tuple[list[Evaluation], list[str]]:
    """The results of every model on every set, and the files written.

    Raises `InputError` for a set that lacks a file or has a label without a class, `ModelError` for
    a model that cannot be loaded.
    """
    kind, splits, measure = _task(command)
    sets = find_sets(command.data, kind, splits)
    total = len(sets) * len(command.model)
    check_out(command.out, total)
    for one in sets:  # a missing shard must not come up after an hour
        for split in splits:
            one.shards(split)
    results: list[Evaluation] = []
    for model in requested_models(command):
        progress.say(f"loading {model.model}")
        estimator = model.load()
        for one in sets:
            progress.say(f"{estimator.identity.model}: {one.name}")
            results.append(measure(estimator, one))
            progress.advance(len(results), total, "results")
    files = write_results(results, command.out) if command.out is not None else []
    return results, files


def requested_models(command: ModelOptions) -> Iterator[ModelRequest]:
    """The models of a command, each with its tag."""
    for model, tag in command.named_models:
        yield ModelRequest(
            model=model,
            pretrained=tag,
            precision=command.precision,
            device=command.device,
            space=command.space,
        )


Measure = Callable[[Estimator, BenchmarkSet], Evaluation]


def _task(command: ModelEvaluation) -> tuple[str, Sequence[str], Measure]:
    """The kind of sets, their splits, and what is measured on one."""
    if isinstance(command, EvaluateRetrieval):
        return (
            RETRIEVAL,
            ("test",),
            lambda estimator, one: retrieval_of(estimator, estimator, one, command.embedding),
        )
    if isinstance(command, EvaluateLinearProbe):
        return CLASSIFICATION, ("train", "test"), lambda e, one: _linear_probe(command, e, one)
    return CLASSIFICATION, ("test",), lambda e, one: _zeroshot(command.embedding, e, one)


def _zeroshot(options: EmbeddingOptions, estimator: Estimator, one: BenchmarkSet) -> Evaluation:
    """Zero-shot classification with the prompts of the set."""

    def encode(prompts: list[str]) -> torch.Tensor:
        return estimator.encode_text(prompts, options.batch_size)

    names = one.classnames()
    weights = classifier_weights(encode, names, one.templates())
    test = embed_classes(estimator, one.shards("test"), len(names), options)
    depth = class_depth(test.image, weights, test.labels)
    table = outcomes.classification_outcomes(test, depth.cpu().numpy())
    return _evaluation(estimator, one, outcomes.ZEROSHOT, table, test.skipped, classes=len(names))


def retrieval_of(
    estimator: Estimator, space: EmbeddingSpace, one: BenchmarkSet, options: EmbeddingOptions
) -> Evaluation:
    """Recall at 1, 5 and 10 in both directions, their sum, and MS-COCO's 1K test where it fits.

    `space` is the estimator itself or an embedding space on top of it.
    """
    test = embed_dataset(space, one.shards("test"), options)
    depths = retrieval_depths(test.image, test.text, test.text_to_image)
    table = outcomes.retrieval_outcomes(test, depths)
    result = _evaluation(
        estimator, one, outcomes.RETRIEVAL, table, test.skipped, captions=len(test.text)
    )
    if len(test.image) < FOLDS * FOLD_IMAGES:
        return result
    folds = fold_recall(test.image, test.text, test.text_to_image)
    for ours, theirs in _DIRECTIONS:
        folds = {name.replace(ours, theirs): value for name, value in folds.items()}
    extra = {f"1k_{name}": value for name, value in folds.items()}
    return dataclasses.replace(result, metrics={**result.metrics, **extra})


def _linear_probe(
    command: EvaluateLinearProbe, estimator: Estimator, one: BenchmarkSet
) -> Evaluation:
    """A linear classifier on the image embeddings, trained on `train`, measured on `test`."""
    names, options = one.classnames(), command.probe_options
    train, test = (
        embed_classes(estimator, one.shards(split), len(names), command.embedding)
        for split in ("train", "test")
    )
    probe = fit_probe(train.image, train.labels, len(names), options)
    depth = probe.depth(test.image, test.labels)
    table = outcomes.classification_outcomes(test, depth.cpu().numpy())
    skipped = dict(test.skipped)
    for reason, count in train.skipped.items():
        skipped[f"train_{reason}"] = count
    settings: dict[str, Any] = {"solver": options.solver, "train_images": len(train.keys)}
    if probe.regularisation is not None:
        settings["regularisation"] = probe.regularisation
    else:
        settings |= dataclasses.asdict(options)
    return _evaluation(
        estimator,
        one,
        outcomes.LINEAR_PROBE,
        table,
        skipped,
        classes=len(names),
        settings=settings,
    )


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
    model = estimator.identity
    metrics: dict[str, float | None] = {
        metric.name: float(metric.value()[0])
        for metric in outcomes.metrics_of(task, table, classes)
    }
    return Evaluation(
        dataset=one.name,
        model=model.model,
        pretrained=model.pretrained,
        task=task,
        metrics=metrics,
        images=len(table.column("image").unique()),
        captions=captions,
        classes=classes,
        skipped=skipped,
        settings=settings or {},
        fingerprint=model.fingerprint,
        precision=model.precision,
        outcomes=table,
    )
