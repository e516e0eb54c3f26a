"""How fast decoders feed a model, with towers that cost nothing, and what the process pays.

Images are encoded and captions too, scores computed, as `score` does it; nothing is written. The
cost of the process with the model is all of its processor time, of which the interpreter is a part.
"""

from __future__ import annotations

import time
from typing import Any

import open_clip
import torch
from corpora import photograph_shards
from measure import Row, Setting, Target
from torch import nn
from towers import OPEN_CLIP_DEFAULT

from ncclean.base.config import ScoreOptions
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.finish_shard import ShardScoring
from ncclean.execution.image_encoder import ImageEncoder
from ncclean.models.estimator import Estimator

_WIDTH = 64


class NoTowers(nn.Module):
    """Embeddings for nothing: a few pixels, and a row for the first token of a text."""

    context_length, vocab_size = 77, 49408

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(4.6))
        self.texts = nn.Embedding(self.vocab_size, _WIDTH)

    def encode_image(self, pixels: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return pixels[:, :, :8, :3].flatten(1)[:, :_WIDTH]

    def encode_text(self, tokens: torch.Tensor, normalize: bool = False) -> Any:
        return self.texts(tokens[:, 1])


class FreeEstimator(Estimator):
    """One that does not normalise all pixels either, which a GPU does."""

    def _encode_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        features = self._encode_image(pixels).float() + 1
        return nn.functional.normalize(features, dim=-1)


def free_estimator() -> Estimator:
    """Towers that cost nothing, with the tokenizer and the images of ViT-B-32."""
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    return FreeEstimator(NoTowers(), tokenizer, OPEN_CLIP_DEFAULT, precision="fp32")


def run(setting: Setting) -> list[Row]:
    count = setting.choose(full=8, quick=2)
    shards = resolve_shards([str(photograph_shards(setting.scratch, count, 500))])
    estimator = free_estimator()
    score(
        estimator, shards, ScoreOptions(decode_threads=2)
    )  # the modules of readers are imported once
    speeds: dict[int, float] = {}
    costs = []
    for _ in range(setting.choose(full=3, quick=1)):
        for decoders in (1, 2):
            speed, cost = score(estimator, shards, ScoreOptions(decode_threads=decoders))
            speeds[decoders] = max(speeds.get(decoders, 0), speed)
            costs.append(cost)
    return [
        Row(
            name="one decoder",
            value=speeds[1],
            unit="pairs/s",
            note="photographs of 640 x 480, on this disk",
        ),
        Row(
            name="two decoders",
            value=speeds[2],
            unit="pairs/s",
            ratio=speeds[2] / speeds[1],
            target=Target("ratio", ">=", 1.8),
        ),
        Row(
            name="process with the model",
            value=1e3 * min(costs),
            unit="ms a pair",
            target=Target("value", "<=", 0.1),
            note="of a processor, the least of all runs",
        ),
    ]


def score(
    estimator: Estimator, shards: list[ShardRef], options: ScoreOptions
) -> tuple[float, float]:
    """Pairs a second, and seconds of a processor for each in this process."""
    columns = ColumnSources(options)
    encoder = ImageEncoder(estimator, options, columns)
    scoring = ShardScoring(
        options=options,
        columns=columns,
        encoder=encoder.facts,
        scale=estimator.scale,
        device=encoder.device,
    )
    begin, own, pairs = time.perf_counter(), time.process_time(), 0
    for _, completion in encoder.encode(shards, lambda samples: None):
        pairs += len(scoring.finish(completion()).table)
    return pairs / (time.perf_counter() - begin), (time.process_time() - own) / pairs
