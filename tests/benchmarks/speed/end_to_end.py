"""`score` from shards to table, against the model alone on the same batches in memory.

The model alone means the estimator's `encode_image` on the batches that `score` forms, already
decoded, and its `encode_text` on the captions of each shard: same precision, trimming and
removal of duplicates. What is left is the cost of reading, decoding, block statistics and
writing. On a CPU these share the cores with the model.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from measure import Row, Setting, Target, take_turns
from towers import random_vit_b_32

from ncclean.data.decode import ImageDecoder
from ncclean.data.decoding import decoded_shard
from ncclean.data.shards import resolve_shards
from ncclean.models.estimator import Estimator
from speed.scoring import score_shards

_BATCH = 256
_WARM_UP = 16  # pairs, so that the first run does not pay for what the others find ready


@dataclass(frozen=True)
class DecodedShard:
    """uint8 (N, 3, H, W) batches and the captions of one shard."""

    batches: list[torch.Tensor]
    captions: list[str]


def run(setting: Setting) -> list[Row]:
    towers, shards = random_vit_b_32(), setting.photographs()
    estimator = towers.estimator("auto")
    estimator.seconds_per_batch(_WARM_UP)
    decoded = decode(estimator, shards)
    out = setting.scratch / "end-to-end.parquet"
    timings = take_turns(
        {
            "model": functools.partial(model_only, estimator, decoded),
            "score": functools.partial(score_shards, estimator, shards, out, batch_size=_BATCH),
        },
        repeats=setting.choose(full=3, quick=1),
    )
    model, score = timings["model"].best, timings["score"]
    pairs = sum(len(shard.captions) for shard in decoded)
    return [
        Row(
            name=f"{towers.name} {estimator.precision}",
            value=pairs / score.best,
            unit="pairs/s",
            ratio=score.best / model,
            target=Target("ratio", "<=", 1.1),
            note=f"time over model-only time, {pairs / model:,.0f} pairs/s; {score.spread}",
        )
    ]


def decode(estimator: Estimator, shards: Sequence[Path]) -> list[DecodedShard]:
    """The crops and captions of shards."""
    decoded = []
    decoder = ImageDecoder(estimator.preprocessing)
    for shard in resolve_shards([str(shard) for shard in shards]):
        samples = list(decoded_shard(shard, decoder, os.cpu_count() or 1))
        pixels = [sample.pixels for sample in samples if sample.pixels is not None]
        batches = list(torch.stack(pixels).split(_BATCH))
        decoded.append(DecodedShard(batches, [s.sample.caption or "" for s in samples]))
    return decoded


def model_only(estimator: Estimator, shards: Sequence[DecodedShard]) -> None:
    """Encode what is decoded."""
    for shard in shards:
        for batch in shard.batches:
            estimator.encode_image(batch)
        estimator.encode_text(shard.captions, _BATCH)
