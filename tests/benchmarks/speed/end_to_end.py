"""`score` from shards to table, against the model alone on the same batches in memory.

The model alone means the estimator's `encode_image` on the batches that `score` forms, already
decoded, and its `encode_text` on the captions of each shard: same precision, trimming and
removal of duplicates. What is left is the cost of reading, decoding, block statistics and
writing. On a CPU these share the cores with the model. What they cost a core is told for the demo
model, whose small images are decoded about as fast as they are encoded.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from measure import Setting, take_turns
from results import Row, Target
from towers import Towers, demo_towers, random_vit_b_32

from ncclean.data.decode import ImageDecoder
from ncclean.data.decoding import decoded_shard
from ncclean.data.reader import read_samples
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
    large, demo = random_vit_b_32(), demo_towers(setting.demo_model)
    small = setting.demo_corpus()
    return [
        _compare(large, setting.photographs(), setting, Target("ratio", "<=", 1.1)),
        _compare(demo, small, setting, Target("ratio", "<=", 1.25)),
        *_parts(demo, small, setting),
    ]


def _compare(
    towers: Towers, shards: Sequence[Path], setting: Setting, target: Target | None
) -> Row:
    estimator = towers.estimator("auto")
    estimator.seconds_per_batch(_WARM_UP)
    decoded = decode(estimator, shards)
    out = setting.scratch / f"end-to-end-{towers.name}.parquet"
    timings = take_turns(
        {
            "model": functools.partial(model_only, estimator, decoded),
            "score": functools.partial(_score, estimator, shards, out),
        },
        repeats=setting.choose(full=3, quick=1),
    )
    model, score = timings["model"].best, timings["score"]
    pairs = sum(len(shard.captions) for shard in decoded)
    return Row(
        name=f"{towers.name} {estimator.precision}",
        value=pairs / score.best,
        unit="pairs/s",
        ratio=score.best / model,
        target=target,
        note=f"time over model-only time, {pairs / model:,.0f} pairs/s; {score.spread}",
    )


def _parts(towers: Towers, shards: Sequence[Path], setting: Setting) -> list[Row]:
    """What parts of `score` cost a core for a pair; the ratio is to the model's cost."""
    estimator = towers.estimator("auto")
    estimator.seconds_per_batch(_WARM_UP)
    decoded = decode(estimator, shards)
    references = resolve_shards([str(shard) for shard in shards])
    images = [
        [sample.image for sample in read_samples(shard) if sample.image is not None]
        for shard in references
    ]
    decoder = ImageDecoder(estimator.preprocessing)
    candidates: dict[str, Callable[[], object]] = {
        "the model": lambda: model_only(estimator, decoded),
        "tar and json": lambda: [list(read_samples(shard)) for shard in references],
        "JPEG and resize": lambda: [decoder.decode_many(several) for several in images],
    }
    costs = dict.fromkeys(candidates, float("inf"))
    for _ in range(setting.choose(full=3, quick=1)):
        for name, part in candidates.items():
            begin = time.process_time()
            part()
            costs[name] = min(costs[name], time.process_time() - begin)
    pairs = sum(len(shard.captions) for shard in decoded)
    return [
        Row(
            name=f"{towers.name}: {name}",
            value=1e6 * cost / pairs,
            unit="core us a pair",
            ratio=cost / costs["the model"],
        )
        for name, cost in costs.items()
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


def _score(estimator: Estimator, shards: Sequence[Path], out: Path) -> None:
    score_shards(estimator, shards, out, batch_size=_BATCH, shift=0.0)
