"""Measure models on evaluation sets: zero-shot, retrieval and linear probe.

A model is loaded once and sees one set after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ncclean.base.progress import SILENT, Progress
from ncclean.data import benchmark_sets
from ncclean.data.benchmark_sets import EvaluationSet, find_sets
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError
from ncclean.evaluation.embedding import EmbeddingSpace, embed_classes, embed_dataset
from ncclean.evaluation.linear_probe import SampleWeights, fit_probe
from ncclean.evaluation.options import EmbeddingOptions, ProbeOptions
from ncclean.evaluation.ranking import (
    FOLD_IMAGES,
    FOLDS,
    class_depth,
    classifier_weights,
    fold_recall,
    retrieval_depths,
)
from ncclean.evaluation.results import (
    LINEAR_PROBE,
    RETRIEVAL,
    ZEROSHOT,
    Evaluation,
    check_free_results,
    check_out,
    classification_outcomes,
    file_name,
    metrics_of,
    retrieval_outcomes,
    write_results,
)
from ncclean.models.estimator import Estimator
from ncclean.models.preprocessing import as_config
from ncclean.models.request import ModelRequest

# Maps names of `recall_at_k` to clip_benchmark's: an image is retrieved by a caption.
_DIRECTIONS = (
    ("text_to_image_R@", "image_retrieval_recall@"),
    ("image_to_text_R@", "text_retrieval_recall@"),
)


def zeroshot(options: EmbeddingOptions, estimator: Estimator, dataset: EvaluationSet) -> Evaluation:
    """Evaluate zero-shot classification with the prompts of a set."""

    def encode(prompts: list[str]) -> torch.Tensor:
        return estimator.encode_text(prompts, options.batch_size)

    names = dataset.classnames()
    weights = classifier_weights(encode, names, dataset.templates())
    test = embed_classes(estimator, dataset.shards("test"), len(names), options, dataset.label)
    depth = class_depth(test.image, weights, test.labels)
    table = classification_outcomes(test, depth.cpu().numpy())
    return _evaluation(estimator, dataset, ZEROSHOT, table, test.skipped, classes=len(names))


def retrieval_of(
    estimator: Estimator,
    space: EmbeddingSpace,
    dataset: EvaluationSet,
    options: EmbeddingOptions,
    captions_per_image: int | None = None,
) -> Evaluation:
    """Measure recall at 1, 5 and 10 in both directions and their sum.

    Also MS-COCO's 1K protocol if there are enough images. `space` is the estimator itself or an
    embedding space on top of it.
    """
    test = embed_dataset(space, dataset.shards("test"), options, captions_per_image)
    depths = retrieval_depths(test.image, test.text, test.text_to_image)
    table = retrieval_outcomes(test, depths)
    result = _evaluation(
        estimator, dataset, RETRIEVAL, table, test.skipped, captions=len(test.text)
    )
    if len(test.image) < FOLDS * FOLD_IMAGES:
        return result
    folds = fold_recall(test.image, test.text, test.text_to_image)
    for ours, theirs in _DIRECTIONS:
        folds = {name.replace(ours, theirs): value for name, value in folds.items()}
    extra = {f"1k_{name}": value for name, value in folds.items()}
    return dataclasses.replace(result, metrics={**result.metrics, **extra})


def linear_probe(
    probe_options: ProbeOptions,
    options: EmbeddingOptions,
    set_epochs: Mapping[str, int],
    weighting: SampleWeights | None,
    estimator: Estimator,
    dataset: EvaluationSet,
) -> Evaluation:
    """Train a linear classifier on embeddings of split `train`, and measure it on `test`.

    `set_epochs` are the epochs of some sets by name. Training images without a weight are omitted.
    """
    names = dataset.classnames()
    train, test = (
        embed_classes(estimator, dataset.shards(split), len(names), options, dataset.label)
        for split in ("train", "test")
    )
    epochs = set_epochs.get(dataset.name, probe_options.epochs)
    probe_options = dataclasses.replace(probe_options, epochs=epochs)
    image, labels, weights, unweighted = train.image, train.labels, None, 0
    if weighting is not None:
        values = weighting.of(train.keys, train.sample_keys)
        has_weight = ~torch.isnan(values)
        unweighted = len(has_weight) - int(has_weight.sum())
        image, labels, weights = (
            image[has_weight.to(image.device)],
            labels[has_weight],
            values[has_weight],
        )
    probe = fit_probe(image, labels, len(names), probe_options, weights)
    depth = probe.depth(test.image, test.labels)
    table = classification_outcomes(test, depth.cpu().numpy())
    skipped = dict(test.skipped)
    for reason, count in train.skipped.items():
        skipped[f"train_{reason}"] = count
    if unweighted:
        skipped["train_without_weight"] = unweighted
    settings: dict[str, Any] = {"solver": probe_options.solver, "train_images": len(labels)}
    if weighting is not None:
        settings["weights"] = weighting.weights
    if probe.regularisation is not None:
        settings["regularisation"] = probe.regularisation
    else:
        settings |= dataclasses.asdict(probe_options)
    return _evaluation(
        estimator, dataset, LINEAR_PROBE, table, skipped, classes=len(names), settings=settings
    )


def _evaluation(
    estimator: Estimator,
    dataset: EvaluationSet,
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
        metric.name: float(metric.value()[0]) for metric in metrics_of(task, table, classes)
    }
    return Evaluation(
        dataset=dataset.name,
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
        preprocessing=as_config(estimator.preprocessing),
        outcomes=table,
    )


@dataclass(frozen=True)
class Task:
    """A way to measure models: its name, the kind of its sets, their splits, and the function."""

    name: str
    kind: str
    splits: Sequence[str]
    measure: Callable[[Estimator, EvaluationSet], Evaluation]
    source_options: SourceOptions | None = None


def zeroshot_task(options: EmbeddingOptions) -> Task:
    """Return the task of zero-shot classification by prompts, for `evaluate`."""
    measure = partial(zeroshot, options)
    return Task(ZEROSHOT, benchmark_sets.CLASSIFICATION, ("test",), measure)


def retrieval_task(
    options: EmbeddingOptions,
    source_options: SourceOptions | None = None,
    captions_per_image: int | None = None,
) -> Task:
    """Return the task of retrieval in both directions, for `evaluate`."""
    return Task(
        RETRIEVAL,
        benchmark_sets.RETRIEVAL,
        ("test",),
        lambda model, dataset: retrieval_of(model, model, dataset, options, captions_per_image),
        source_options,
    )


def linear_probe_task(
    options: EmbeddingOptions,
    probe: ProbeOptions,
    set_epochs: Mapping[str, int] | None = None,
    weighting: SampleWeights | None = None,
) -> Task:
    """Return the task of a linear classifier on frozen embeddings, for `evaluate`."""
    measure = partial(linear_probe, probe, options, set_epochs or {}, weighting)
    return Task(LINEAR_PROBE, benchmark_sets.CLASSIFICATION, ("train", "test"), measure)


def evaluate(
    task: Task,
    models: Sequence[ModelRequest],
    data: Sequence[str],
    *,
    out: str | None = None,
    command: str = "",
    overwrite: bool = False,
    expected: Iterable[str] = (),
    progress: Progress = SILENT,
) -> tuple[list[Evaluation], list[str]]:
    """Evaluate every model on every set; return the results and the files written.

    `expected` are names of sets that options mention. `command` is the one whose results may be
    replaced. Raises `InputError` for a set that lacks a file or has a label without a class, and
    for a missing expected set, `ModelError` for a model that cannot be loaded.
    """
    sets = find_sets(data, task.kind, task.splits, task.source_options)
    for name in expected:
        if name not in {dataset.name for dataset in sets}:
            listed = ", ".join(dataset.name for dataset in sets)
            raise InputError(f"there is no set {name}: these are {listed}")
    total = len(sets) * len(models)
    check_out(out, total)
    check_free_results(out, (), command, overwrite)
    for dataset in sets:  # a missing shard must not appear after an hour
        for split in task.splits:
            dataset.shards(split)
    results: list[Evaluation] = []
    for model in models:
        progress.say(f"loading {model.model}")
        estimator = model.load()
        about = estimator.identity
        names = [
            file_name(dataset.name, about.pretrained, about.model, task.name) for dataset in sets
        ]
        check_free_results(out, names, command, overwrite)
        for dataset in sets:
            progress.say(f"{estimator.identity.model}: {dataset.name}")
            results.append(task.measure(estimator, dataset))
            progress.advance(len(results), total, "results")
    files = []
    if out is not None:
        files = write_results(results, out, command)
    return results, files
