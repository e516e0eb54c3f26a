"""Models measured on one evaluation set: zero-shot, retrieval and linear probe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from ncclean.data.benchmark_sets import EvaluationSet
from ncclean.evaluation import outcomes
from ncclean.evaluation.embedding import EmbeddingSpace, embed_classes, embed_dataset
from ncclean.evaluation.linear_probe import fit_probe
from ncclean.evaluation.options import EmbeddingOptions, ProbeOptions
from ncclean.evaluation.results import Evaluation
from ncclean.evaluation.retrieval import FOLD_IMAGES, FOLDS, fold_recall, retrieval_depths
from ncclean.evaluation.sample_weights import SampleWeights
from ncclean.evaluation.zeroshot import class_depth, classifier_weights
from ncclean.models.estimator import Estimator
from ncclean.models.preprocessing import as_config

# Names of `recall_at_k` to those of clip_benchmark: an image is retrieved by a caption.
_DIRECTIONS = (
    ("text_to_image_R@", "image_retrieval_recall@"),
    ("image_to_text_R@", "text_retrieval_recall@"),
)


def zeroshot(options: EmbeddingOptions, estimator: Estimator, one: EvaluationSet) -> Evaluation:
    """Evaluate zero-shot classification with the prompts of a set."""

    def encode(prompts: list[str]) -> torch.Tensor:
        return estimator.encode_text(prompts, options.batch_size)

    names = one.classnames()
    weights = classifier_weights(encode, names, one.templates())
    test = embed_classes(estimator, one.shards("test"), len(names), options, one.label)
    depth = class_depth(test.image, weights, test.labels)
    table = outcomes.classification_outcomes(test, depth.cpu().numpy())
    return _evaluation(estimator, one, outcomes.ZEROSHOT, table, test.skipped, classes=len(names))


def retrieval_of(
    estimator: Estimator,
    space: EmbeddingSpace,
    one: EvaluationSet,
    options: EmbeddingOptions,
    captions_per_image: int | None = None,
) -> Evaluation:
    """Recall at 1, 5 and 10 in both directions, their sum, and MS-COCO's 1K protocol where it fits.

    `space` is the estimator itself or an embedding space on top of it.
    """
    test = embed_dataset(space, one.shards("test"), options, captions_per_image)
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


def linear_probe(
    probe_options: ProbeOptions,
    options: EmbeddingOptions,
    set_epochs: Mapping[str, int],
    weighting: SampleWeights | None,
    estimator: Estimator,
    one: EvaluationSet,
) -> Evaluation:
    """Train a linear classifier on embeddings of split `train`, and measure it on `test`.

    `set_epochs` are the epochs of some sets by name. A training image without a weight is left out.
    """
    names = one.classnames()
    train, test = (
        embed_classes(estimator, one.shards(split), len(names), options, one.label)
        for split in ("train", "test")
    )
    epochs = set_epochs.get(one.name, probe_options.epochs)
    probe_options = dataclasses.replace(probe_options, epochs=epochs)
    image, labels, weights, unweighted = train.image, train.labels, None, 0
    if weighting is not None:
        found = weighting.of(train.keys, train.sample_keys)
        there = ~torch.isnan(found)
        unweighted = len(there) - int(there.sum())
        image, labels, weights = image[there.to(image.device)], labels[there], found[there]
    probe = fit_probe(image, labels, len(names), probe_options, weights)
    depth = probe.depth(test.image, test.labels)
    table = outcomes.classification_outcomes(test, depth.cpu().numpy())
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
        estimator, one, outcomes.LINEAR_PROBE, table, skipped, classes=len(names), settings=settings
    )


def _evaluation(
    estimator: Estimator,
    one: EvaluationSet,
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
        preprocessing=as_config(estimator.preprocessing),
        outcomes=table,
    )
