"""The outcome for each image and caption of an evaluation as a table, and the metrics of it.

Every metric of a result is computed from its outcomes, so a comparison of two results resamples
the data behind the reported numbers.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ncclean.base import schema
from ncclean.errors import InputError
from ncclean.evaluation.bootstrap import Metric
from ncclean.evaluation.embedding import EmbeddedClasses, EmbeddedPairs
from ncclean.evaluation.retrieval import KS, RetrievalDepths
from ncclean.evaluation.zeroshot import TOP

# Tasks by the names of clip_benchmark.
ZEROSHOT = "zeroshot_classification"
RETRIEVAL = "zeroshot_retrieval"
LINEAR_PROBE = "linear_probe"
TASKS = (ZEROSHOT, RETRIEVAL, LINEAR_PROBE)

_IDENTITY = ["query", "image", "number", "label"]


def classification_outcomes(embedded: EmbeddedClasses, depth: np.ndarray) -> pa.Table:
    """The table of outcomes of a classification, from (N,) ranks of the true class."""
    count = len(embedded.keys)
    return _table(
        query=["image"] * count,
        image=embedded.keys,
        number=np.zeros(count),
        label=embedded.labels.cpu().numpy(),
        depth=depth,
    )


def retrieval_outcomes(embedded: EmbeddedPairs, depths: RetrievalDepths) -> pa.Table:
    """The table of outcomes of a retrieval: images first, then captions in their images' order."""
    owner = embedded.text_to_image.cpu().numpy()
    images, captions = len(embedded.keys), len(owner)
    # Captions of an image are consecutive: count on from its first.
    first = np.searchsorted(owner, np.arange(images))
    return _table(
        query=["image"] * images + ["caption"] * captions,
        image=[*embedded.keys, *(embedded.keys[number] for number in owner.tolist())],
        number=np.concatenate([np.zeros(images), np.arange(captions) - first[owner]]),
        label=pa.nulls(images + captions, pa.int32()),
        depth=np.concatenate([depths.image.cpu().numpy(), depths.caption.cpu().numpy()]),
    )


def metrics_of(task: str, outcomes: pa.Table, classes: int | None) -> list[Metric]:
    """The metrics of a task under clip_benchmark's names, and `rsum` for retrieval.

    `acc5` is left out for fewer than five `classes`, where clip_benchmark has NaN.
    """
    images = pc.dictionary_encode(outcomes.column("image").combine_chunks())
    image, depth = images.indices.to_numpy(), outcomes.column("depth").to_numpy()
    if task != RETRIEVAL:
        prefix = "lp_" if task == LINEAR_PROBE else ""
        label = outcomes.column("label").to_numpy()
        metrics = [Metric.of(f"{prefix}acc1", image, depth < 1)]
        if classes is None or classes >= TOP:
            metrics.append(Metric.of(f"{prefix}acc5", image, depth < TOP))
        recall = Metric.of(f"{prefix}mean_per_class_recall", image, depth < 1, label)
        return [*metrics, recall]
    is_caption = pc.equal(outcomes.column("query"), "caption").to_numpy(zero_copy_only=False)
    metrics = []
    hits: list[np.ndarray] = []
    strata: list[np.ndarray] = []
    # An image is retrieved by a caption, a text by an image.
    for name, asks in (("image", is_caption), ("text", ~is_caption)):
        for k in KS:
            hit = depth[asks] < k
            metrics.append(Metric.of(f"{name}_retrieval_recall@{k}", image[asks], hit))
            hits.append(hit)
            strata.append(np.full(len(hit), len(strata)))
    everyone = np.concatenate([image[is_caption]] * len(KS) + [image[~is_caption]] * len(KS))
    rsum = Metric.of(
        "rsum", everyone, np.concatenate(hits), np.concatenate(strata), scale=100.0 * len(strata)
    )
    return [*metrics, rsum]


def aligned(a: pa.Table, b: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Bring two models' tables of outcomes into the same order of images.

    Raises `InputError` if their images, captions or labels differ.
    """
    order = [(name, "ascending") for name in ("query", "image", "number")]
    a, b = a.sort_by(order), b.sort_by(order)
    if not a.select(_IDENTITY).equals(b.select(_IDENTITY)):
        raise InputError(
            f"the two results are on different samples ({a.num_rows:,} and {b.num_rows:,} "
            "queries): evaluate both models on the same data"
        )
    return a, b


def _table(**columns: object) -> pa.Table:
    arrays = [
        columns[field.name]
        if isinstance(columns[field.name], pa.Array)
        else pa.array(columns[field.name]).cast(field.type)
        for field in schema.OUTCOMES
    ]
    return pa.table(arrays, schema=schema.OUTCOMES)
