"""The similarity stage: cosines of matched and mismatched pairs, of one model or of two."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncclean import stores
from ncclean.data.benchmark_sets import RETRIEVAL, read_set
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.errors import InputError
from ncclean.evaluation.embedding import EmbeddingOptions, embed_dataset
from ncclean.evaluation.similarity import Similarities, similarities
from ncclean.execution.engine import ModelRequest


@dataclass(frozen=True, kw_only=True)
class SimilarityRequest:
    """`data` are retrieval sets in clip_benchmark's layout, or shards of pairs; `plot` a figure."""

    models: Sequence[ModelRequest]
    data: Sequence[str]
    plot: Path | None = None
    embedding: EmbeddingOptions = field(default_factory=EmbeddingOptions)


@dataclass(frozen=True)
class ModelSimilarity:
    """The cosines of one model, see `Similarities`; `skipped` counts samples by reason."""

    model: str
    pretrained: str
    found: Similarities
    skipped: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "pretrained": self.pretrained,
            **dataclasses.asdict(self.found.summary()),
            "skipped": self.skipped,
        }


def evaluate_similarity(
    request: SimilarityRequest, on_stage: Callable[[str], None] = lambda text: None
) -> list[ModelSimilarity]:
    """Compare the models' cosines, and draw them if `plot` is given.

    Raises `InputError` if the data cannot be read or holds fewer than two images.
    """
    if request.plot is not None:
        from ncclean.evaluation.noise_figure import check_format

        check_format(request.plot)
    shards = [shard for source in request.data for shard in _shards(source)]
    results = []
    for model in request.models:
        estimator = model.load()
        on_stage(estimator.identity.model)
        pairs = embed_dataset(estimator, shards, request.embedding)
        if len(pairs.keys) < 2:
            raise InputError("similarities take at least two images: one has no negatives")
        found = similarities(pairs.image, pairs.text, pairs.text_to_image)
        identity = estimator.identity
        results.append(ModelSimilarity(identity.model, identity.pretrained, found, pairs.skipped))
    if request.plot is not None:
        from ncclean.evaluation.similarity_figure import save_similarity_figure

        save_similarity_figure([(each.model, each.found) for each in results], request.plot)
    return results


def _shards(source: str) -> list[ShardRef]:
    """Of a retrieval set's test split, or of whatever `score` takes."""
    folder = stores.location(source.rstrip("/") or source)
    one = None if source.startswith("@") or "{" in source or "*" in source else read_set(folder)
    if one is None:
        return resolve_shards([source])
    if one.kind != RETRIEVAL:
        raise InputError(f"{source} is a {one.kind} set: its images have no captions")
    return one.shards("test")
