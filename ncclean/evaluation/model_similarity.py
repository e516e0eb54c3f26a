"""The cosines of matched and mismatched pairs by each of several models, on the same data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ncclean.base import stores
from ncclean.base.progress import Progress
from ncclean.data.benchmark_sets import RETRIEVAL, read_set
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.errors import InputError
from ncclean.evaluation.embedding import embed_dataset
from ncclean.evaluation.options import EmbeddingOptions
from ncclean.evaluation.similarity import Similarities, similarities
from ncclean.models.preprocessing import as_config
from ncclean.models.request import ModelRequest


@dataclass(frozen=True)
class ModelSimilarity:
    """The cosines of one model, see `Similarities`; `skipped` counts samples by reason."""

    model: str
    pretrained: str
    cosines: Similarities
    skipped: dict[str, int]
    preprocessing: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The model, and mean, spread and quantiles of its cosines."""
        return {
            "model": self.model,
            "pretrained": self.pretrained,
            **dataclasses.asdict(self.cosines.summary()),
            "skipped": self.skipped,
            "preprocessing": self.preprocessing,
        }


def measure_similarity(
    models: Sequence[ModelRequest],
    sources: Sequence[str],
    embedding: EmbeddingOptions,
    progress: Progress,
) -> Iterator[ModelSimilarity]:
    """Embed the pairs of `sources` with one model after the other, and compare their cosines.

    A source is a retrieval set in clip_benchmark's layout, of which the test split is taken, or
    shards. Raises `InputError` if it cannot be read or holds fewer than two images.
    """
    shards = [shard for source in sources for shard in _shards(source)]
    for model in models:
        progress.say(f"{model.model}: loading")
        estimator = model.load()
        progress.say(f"{model.model}: embedding")
        pairs = embed_dataset(estimator, shards, embedding)
        if len(pairs.keys) < 2:
            raise InputError("similarities need at least two images: a single one has no negatives")
        cosines = similarities(pairs.image, pairs.text, pairs.text_to_image)
        identity = estimator.identity
        yield ModelSimilarity(
            identity.model,
            identity.pretrained,
            cosines,
            pairs.skipped,
            as_config(estimator.preprocessing),
        )


def _shards(source: str) -> list[ShardRef]:
    """The shards of a retrieval set's test split, or of any source that `score` takes."""
    folder = stores.location(source.rstrip("/") or source)
    one = None if source.startswith("@") or "{" in source or "*" in source else read_set(folder)
    if one is None:
        return resolve_shards([source])
    if one.kind != RETRIEVAL:
        raise InputError(
            f"{source} is a {one.kind} set, whose images have no captions: name a retrieval set"
        )
    return one.shards("test")
