"""A run's DisNCL heads on held-out shards, measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ncclean.data.decode import ImageDecoder
from ncclean.data.shards import ShardRef
from ncclean.data.stream import StreamReader
from ncclean.errors import InputError
from ncclean.evaluation.disentanglement import (
    DisentanglementReport,
    disentanglement_report,
    head_parts,
)
from ncclean.evaluation.disentanglement_figure import projected, save_figure
from ncclean.evaluation.scene_facts import scene_facts
from ncclean.models.estimator import Estimator
from ncclean.models.heads import read_heads
from ncclean.progress import SILENT, Progress
from ncclean.training.feature_cache import encode_features

_BATCH = 128
_FEWEST = 40


def measure_heads(
    folder: Path,
    shards: Sequence[ShardRef],
    *,
    pairs: int = 2000,
    plot: str | None = None,
    precision: str = "auto",
    device: str = "auto",
    seed: int = 0,
    progress: Progress = SILENT,
) -> DisentanglementReport:
    """Encode the pairs, take them apart, measure, and draw if asked to.

    Raises `ModelError` if the run has no heads, `InputError` if pairs are too few.
    """
    heads = read_heads(folder)
    estimator = Estimator.load(f"local-dir:{folder}", None, precision=precision, device=device)
    progress.say(f"encoding {pairs:,} pairs at most")
    image, text, metadata = encoded_pairs(estimator, shards, pairs)
    if len(image) < _FEWEST:
        raise InputError(f"only {len(image)} pairs could be read: at least {_FEWEST} are needed")
    progress.say("measuring the halves")
    parts = head_parts(heads, image, text)
    report = disentanglement_report(parts, [scene_facts(record) for record in metadata], seed)
    if plot is not None:
        save_figure(report, projected(parts, seed=seed), plot)
    return report


def encoded_pairs(
    estimator: Estimator, shards: Sequence[ShardRef], pairs: int
) -> tuple[torch.Tensor, torch.Tensor, list[dict[str, Any]]]:
    """(N, d) features of the first pairs that can be read, and their json."""
    reader = StreamReader(
        shards,
        ImageDecoder(estimator.preprocessing),
        threads=2,
        prefetch=2 * _BATCH,
    )
    held: list[tuple[torch.Tensor, str]] = []
    features: list[tuple[torch.Tensor, ...]] = []
    metadata: list[dict[str, Any]] = []

    def encode() -> None:
        pixels = torch.stack([crop for crop, _ in held])
        batch = encode_features(estimator, pixels, [caption for _, caption in held])
        features.append(tuple(half.cpu() for half in batch))
        held.clear()

    with reader:
        for stream in reader:
            for decoded in stream:
                if decoded.pixels is None or decoded.sample.caption is None:
                    continue
                if len(metadata) < pairs:
                    held.append((decoded.pixels, decoded.sample.caption))
                    metadata.append(decoded.sample.metadata)
                if len(held) == _BATCH:
                    encode()
    if held:
        encode()
    if not features:
        return torch.empty(0, 1), torch.empty(0, 1), []
    return torch.cat([f[0] for f in features]), torch.cat([f[1] for f in features]), metadata
