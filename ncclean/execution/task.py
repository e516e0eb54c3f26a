"""One shard as one task: decoded samples in, a checked table of rows and its statistics out.

The task keeps nothing and writes nothing, so it can be run again after any failure.
"""

from __future__ import annotations

import functools
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from ncclean import schema
from ncclean.columns import PairBatch
from ncclean.config import ScoreOptions
from ncclean.data.samples import SkipReason
from ncclean.data.stream import DecodedSample, ShardStream
from ncclean.execution.further_columns import BatchColumns, FurtherColumns
from ncclean.execution.shard_rows import (
    Row,
    ShardEmbeddings,
    captions_of,
    check_rows,
    exported,
    facts_of_rows,
    further_rows,
    groups_of,
    images_of_rows,
    place_of,
    score_table,
    strings,
)
from ncclean.models.estimator import Estimator
from ncclean.scoring.columns import caption_numbers, score_pairs
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.grouping import group_labels, of_fields

# Batches handed to the estimator before the oldest must be done.
_BATCHES_IN_FLIGHT = 2


@dataclass
class ShardResult:
    table: pa.Table
    stats: ShardStats
    distributions: Distributions
    embeddings: ShardEmbeddings | None


@dataclass
class EmbeddedShard:
    """All samples of a shard in input order, (n, d) image embeddings of the scorable ones."""

    stream: ShardStream
    samples: list[DecodedSample]
    image: torch.Tensor
    columns: BatchColumns
    seconds: float


def score_shard(
    stream: ShardStream,
    estimator: Estimator,
    options: ScoreOptions,
    further: FurtherColumns | None = None,
    on_progress: Callable[[int], None] = lambda samples: None,
) -> ShardResult:
    """Score every sample of a shard.

    The shard's error, if it broke off, is in `stats.error`; its readable samples still have
    rows. `on_progress` receives the number of samples after each batch.
    """
    further = further or FurtherColumns(options)
    embedded = embed_images(stream, estimator, options, further, on_progress)
    return finish_shard(embedded, estimator, options, further)


def embed_images(
    stream: ShardStream,
    estimator: Estimator,
    options: ScoreOptions,
    further: FurtherColumns,
    on_progress: Callable[[int], None] = lambda samples: None,
) -> EmbeddedShard:
    """The first half of `score_shard`: encode the images while others are decoded."""
    start = time.perf_counter()
    samples: list[DecodedSample] = []
    rows: list[int] = []
    held: list[DecodedSample] = []
    begun: deque[tuple[Callable[[], torch.Tensor], list[DecodedSample], list[torch.Tensor]]]
    begun = deque()
    batches: list[torch.Tensor] = []
    columns = BatchColumns(further)

    def begin() -> None:
        pixels = [decoded.pixels for decoded in held if decoded.pixels is not None]
        begun.append((estimator.start_image(pixels), list(held), pixels))
        for decoded in held:
            decoded.pixels = None  # the batch holds them; the sample outlives the batch
        held.clear()

    def finish() -> None:
        result, of_batch, pixels = begun.popleft()
        batches.append(result())
        if further.has_functions:
            columns.add(*_pair_batch(of_batch, pixels, batches[-1], estimator, options.batch_size))

    for decoded in stream:
        samples.append(decoded)
        if decoded.pixels is not None:
            rows.append(decoded.sample.row)
            held.append(decoded)
        if len(held) == options.batch_size:
            begin()
            if len(begun) > _BATCHES_IN_FLIGHT:
                finish()
            on_progress(len(samples))
    if held:
        begin()
    while begun:
        finish()
    on_progress(len(samples))
    samples.sort(key=lambda decoded: decoded.sample.row)
    if batches:
        # Samples whose members were interleaved come out of order; rows restore it.
        order = torch.tensor(np.argsort(rows), device=estimator.device)
        image = torch.cat(batches)[order]
    else:
        image = torch.empty(0, estimator.embed_dim, device=estimator.device)
    return EmbeddedShard(stream, samples, image, columns, time.perf_counter() - start)


def _pair_batch(
    samples: list[DecodedSample],
    pixels: list[torch.Tensor],
    image: torch.Tensor,
    estimator: Estimator,
    batch_size: int,
) -> tuple[list[int], PairBatch]:
    """The pairs of a batch of images for functions of `--columns`, and their places."""
    usable = [
        (number, decoded.sample, caption)
        for number, decoded in enumerate(samples)
        for caption in decoded.sample.captions
        if caption.text is not None
    ]
    captions = [caption.text or "" for _, _, caption in usable]
    batch = PairBatch(
        captions,
        image[torch.tensor([number for number, _, _ in usable], device=image.device)].float(),
        torch.stack([pixels[number] for number, _, _ in usable]),
        [sample.metadata for _, sample, _ in usable],
        functools.cache(lambda: estimator.encode_text(captions, batch_size).float()),
    )
    return [place_of(sample.row, caption.number) for _, sample, caption in usable], batch


def finish_shard(
    embedded: EmbeddedShard,
    estimator: Estimator,
    options: ScoreOptions,
    further: FurtherColumns,
) -> ShardResult:
    """The second half of `score_shard`: captions, block statistics and the table."""
    start = time.perf_counter()
    stream, samples, image = embedded.stream, embedded.samples, embedded.image
    rows = [Row(decoded, caption) for decoded in samples for caption in captions_of(decoded.sample)]
    scorable = [row for row in rows if row.status is SkipReason.OK]
    text = estimator.encode_text([row.caption.text or "" for row in scorable], options.batch_size)
    images = images_of_rows(scorable)
    if len(scorable) > len(image):
        image = image[torch.from_numpy(images).to(image.device)]
    facts = facts_of_rows(stream, samples, rows, with_text=options.text)
    ok = np.array([row.status is SkipReason.OK for row in rows], dtype=bool)
    captions = [row.caption.text for row in scorable]
    values = embedded.columns.in_order()
    values |= further.of_pairs(image, captions, [row.decoded.signals for row in scorable])
    columns = further_rows(further, values, ok)
    if options.calibrate_by is not None:
        fields = of_fields([row.sample.metadata for row in rows], options.calibrate_by)
        texts = strings([row.caption.text for row in rows])
        facts["calibration_group"] = group_labels(
            options.calibrate_by, pa.table({**fields, **facts, "text": texts, **columns})
        )
    scores = score_pairs(
        image,
        text,
        images=images,
        captions=caption_numbers(captions),
        scale=estimator.scale,
        shard=stream.shard.name,
        block_size=options.block_size,
        forget_percent=options.forget_percent,
        seed=options.seed,
        groups=groups_of(facts, ok),
    )
    if further.words is not None:
        checked = further.words.of_shard(
            image,
            text,
            [caption or "" for caption in captions],
            stream.shard.name,
            estimator,
            options.batch_size,
            scores.distributions.mismatched,
        )
        values |= checked.values
        columns = further_rows(further, values, ok)
        scores.distributions.scores["near_miss_score"] = checked.distributions
    table = score_table(facts, ok=ok, scores=scores, further=columns)
    stats = ShardStats(
        rows=len(rows),
        statuses=dict(Counter(row.status.value for row in rows)),
        seconds=embedded.seconds + time.perf_counter() - start,
        error=str(stream.error) if stream.error is not None else None,
        column_failures=embedded.columns.failures,
    )
    check_rows(table, stats, len(samples))
    embeddings = exported(table, image, text) if options.embeddings is not None else None
    return ShardResult(table, stats, scores.distributions, embeddings)


def failed_result(reason: str, further: FurtherColumns) -> ShardResult:
    """The result of a shard without a scored sample."""
    table = schema.with_further(further.fields).empty_table()
    return ShardResult(table, ShardStats(0, {}, 0.0, reason), Distributions(), None)
