"""Compare cosines of images with their own captions, others', and the hardest of the others'.

Fig. 5 of the NCU paper shows, for a model before and after, how far matched pairs exceed the mean
negative and the hardest 5 % of negatives, for each image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ncclean.base import stores
from ncclean.base.formats import model_label
from ncclean.base.progress import Progress
from ncclean.data.benchmark_sets import RETRIEVAL, read_set
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.errors import InputError
from ncclean.evaluation.embedding import embed_dataset
from ncclean.evaluation.options import EmbeddingOptions
from ncclean.models.preprocessing import as_config
from ncclean.models.request import ModelRequest

HARDEST_SHARE = 0.05
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Similarities:
    """The cosines (N,) of N images with captions: own ones, all others, and the hardest others.

    Each is the mean over these captions; the hardest are the share of the others that fit best.
    """

    positive: torch.Tensor
    negative: torch.Tensor
    hardest: torch.Tensor

    def summary(self) -> SimilaritySummary:
        return SimilaritySummary(
            images=len(self.positive),
            positive=_facts(self.positive),
            negative=_facts(self.negative),
            hardest=_facts(self.hardest),
            above_hardest=float((self.positive > self.hardest).float().mean()),
        )


@dataclass(frozen=True)
class Facts:
    """Mean, standard deviation, and quantiles by their percentage (`q5` to `q95`) of cosines."""

    mean: float
    std: float
    quantiles: dict[str, float]


@dataclass(frozen=True)
class SimilaritySummary:
    """The cosines of own, of other and of the hardest other captions, summarised over images.

    `above_hardest` is the share of images whose own captions beat the hardest negatives.
    """

    images: int
    positive: Facts
    negative: Facts
    hardest: Facts
    above_hardest: float


def similarities(
    image: torch.Tensor,
    text: torch.Tensor,
    text_to_image: torch.Tensor,
    hardest_share: float = HARDEST_SHARE,
    chunk: int = 512,
) -> Similarities:
    """Return mean cosines of N images with their own captions, all others, and the hardest others.

    `image` (N, d) and `text` (M, d) are L2-normalised; `text_to_image` (M,) is each caption's
    image. The hardest negatives of an image are the ceil(share * its negatives) with the largest
    cosine. Only `chunk` rows of similarities exist at a time. Raises `ValueError` unless every
    image has a caption of its own and one of another image.
    """
    owners = text_to_image.to(text.device)
    captions = torch.bincount(owners, minlength=len(image))
    if (
        len(captions) != len(image)
        or not len(image)
        or int(captions.min()) < 1
        or len(text) == int(captions.max())
    ):
        raise ValueError("every image needs a caption of its own and one of another image")
    positive, negative, hardest = [], [], []
    for start in range(0, len(image), chunk):
        similarity = image[start : start + chunk] @ text.T
        rows = torch.arange(start, start + len(similarity), device=text.device)
        is_own = owners == rows[:, None]
        owned = captions[rows]
        others = len(text) - owned
        # Two sums instead of a difference of sums: matched cosines are few among many.
        positive.append(torch.where(is_own, similarity, 0.0).sum(dim=1) / owned)
        negative.append(torch.where(is_own, 0.0, similarity).sum(dim=1) / others)
        counts = (others * hardest_share).ceil().long().clamp_min(1)
        top = torch.where(is_own, -torch.inf, similarity).topk(int(counts.max()), dim=1).values
        is_among = torch.arange(top.shape[1], device=top.device) < counts[:, None]
        hardest.append(torch.where(is_among, top, 0.0).sum(dim=1) / counts)
    return Similarities(*(torch.cat(parts).cpu() for parts in (positive, negative, hardest)))


def _facts(values: torch.Tensor) -> Facts:
    exact = values.double()
    quantiles = torch.quantile(exact, torch.tensor(_QUANTILES, dtype=torch.float64))
    return Facts(
        mean=float(exact.mean()),
        std=float(exact.std(correction=0)),
        quantiles={
            f"q{round(100 * q)}": v for q, v in zip(_QUANTILES, quantiles.tolist(), strict=True)
        },
    )


@dataclass(frozen=True)
class ModelSimilarity:
    """The cosines of one model with a data set, summarised; see `Similarities`.

    `skipped` counts samples by reason.
    """

    model: str
    pretrained: str
    cosines: Similarities
    skipped: dict[str, int]
    preprocessing: dict[str, Any]

    @property
    def label(self) -> str:
        """The model's name in tables."""
        return model_label(self.model, self.pretrained)

    def to_json(self) -> dict[str, Any]:
        """Return the model, and mean, spread and quantiles of its cosines, as JSON."""
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

    A source is a retrieval set in clip_benchmark's layout, whose test split is used, or shards.
    Raises `InputError` if it cannot be read or holds fewer than two images.
    """
    shards = [shard for source in sources for shard in captioned_shards(source)]
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


def captioned_shards(source: str) -> list[ShardRef]:
    """Return the shards of a retrieval set's test split, or of any source for `score`."""
    folder = stores.location(source.rstrip("/") or source)
    dataset = None if source.startswith("@") or "{" in source or "*" in source else read_set(folder)
    if dataset is None:
        return resolve_shards([source])
    if dataset.kind != RETRIEVAL:
        raise InputError(
            f"{source} is a {dataset.kind} set, whose images have no captions: name a retrieval set"
        )
    return dataset.shards("test")
