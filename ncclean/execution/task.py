"""One shard as one task: decoded samples in, a checked table of rows and its statistics out.

The task keeps nothing and writes nothing, so it can be run again after any failure.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ncclean import schema
from ncclean.config import ScoreOptions
from ncclean.data.member_samples import sample_uid
from ncclean.data.samples import SkipReason
from ncclean.data.stream import DecodedSample, ShardStream
from ncclean.models.estimator import Estimator
from ncclean.scoring.columns import BlockScores, score_pairs
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.grouping import group_labels, of_fields

# Batches handed to the estimator before the oldest must be done.
_BATCHES_IN_FLIGHT = 2


@dataclass
class ShardEmbeddings:
    """float16 (n, d) embeddings of the scorable pairs and the rows they belong to."""

    image: np.ndarray
    text: np.ndarray
    metadata: pa.Table


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
    seconds: float


def score_shard(
    stream: ShardStream,
    estimator: Estimator,
    options: ScoreOptions,
    on_progress: Callable[[int], None] = lambda samples: None,
) -> ShardResult:
    """Score every sample of a shard.

    The shard's error, if it broke off, is in `stats.error`; its readable samples still have
    rows. `on_progress` receives the number of samples after each batch.
    """
    return finish_shard(embed_images(stream, estimator, options, on_progress), estimator, options)


def embed_images(
    stream: ShardStream,
    estimator: Estimator,
    options: ScoreOptions,
    on_progress: Callable[[int], None] = lambda samples: None,
) -> EmbeddedShard:
    """The first half of `score_shard`: encode the images while others are decoded."""
    start = time.perf_counter()
    samples: list[DecodedSample] = []
    rows: list[int] = []
    pixels: list[torch.Tensor] = []
    begun: deque[Callable[[], torch.Tensor]] = deque()
    batches: list[torch.Tensor] = []
    for decoded in stream:
        samples.append(decoded)
        if decoded.pixels is not None:
            rows.append(decoded.sample.row)
            pixels.append(decoded.pixels)
            decoded.pixels = None  # the batch holds it; the sample outlives the batch
        if len(pixels) == options.batch_size:
            begun.append(estimator.start_image(pixels))
            pixels = []
            if len(begun) > _BATCHES_IN_FLIGHT:
                batches.append(begun.popleft()())
            on_progress(len(samples))
    if pixels:
        begun.append(estimator.start_image(pixels))
    batches += [result() for result in begun]
    on_progress(len(samples))
    samples.sort(key=lambda decoded: decoded.sample.row)
    if batches:
        # Samples whose members were interleaved come out of order; rows restore it.
        order = torch.tensor(np.argsort(rows), device=estimator.device)
        image = torch.cat(batches)[order]
    else:
        image = torch.empty(0, estimator.embed_dim, device=estimator.device)
    return EmbeddedShard(stream, samples, image, time.perf_counter() - start)


def finish_shard(
    embedded: EmbeddedShard, estimator: Estimator, options: ScoreOptions
) -> ShardResult:
    """The second half of `score_shard`: captions, block statistics and the table."""
    start = time.perf_counter()
    stream, samples, image = embedded.stream, embedded.samples, embedded.image
    scorable = [decoded for decoded in samples if decoded.sample.status is SkipReason.OK]
    captions = [decoded.sample.caption or "" for decoded in scorable]
    text = estimator.encode_text(captions, options.batch_size)
    facts = _facts(stream, samples, with_text=options.text)
    ok = np.array([decoded.sample.status is SkipReason.OK for decoded in samples], dtype=bool)
    if options.calibrate_by is not None:
        fields = of_fields([decoded.sample.metadata for decoded in samples], options.calibrate_by)
        facts["calibration_group"] = group_labels(
            options.calibrate_by, pa.table({**fields, **facts, "text": _captions(samples)})
        )
    scores = score_pairs(
        image,
        text,
        scale=estimator.scale,
        shard=stream.shard.name,
        block_size=options.block_size,
        forget_percent=options.forget_percent,
        seed=options.seed,
        groups=groups_of(facts, ok),
    )
    table = score_table(facts, ok=ok, scores=scores)
    stats = ShardStats(
        rows=len(samples),
        statuses=dict(Counter(decoded.sample.status.value for decoded in samples)),
        seconds=embedded.seconds + time.perf_counter() - start,
        error=str(stream.error) if stream.error is not None else None,
    )
    _check(table, stats)
    embeddings = exported(table, image, text) if options.embeddings is not None else None
    return ShardResult(table, stats, scores.distributions, embeddings)


def failed_result(reason: str) -> ShardResult:
    """The result of a shard without a scored sample."""
    stats = ShardStats(0, {}, 0.0, reason)
    return ShardResult(schema.SCORES.empty_table(), stats, Distributions(), None)


def _captions(samples: list[DecodedSample]) -> pa.Array:
    return _strings([decoded.sample.caption for decoded in samples])


def groups_of(facts: Mapping[str, pa.Array], ok: np.ndarray) -> np.ndarray | None:
    """The group of each pair that is `ok`; None if nothing is calibrated apart."""
    labels = facts.get("calibration_group")
    return None if labels is None else np.array(labels.to_pylist(), dtype=object)[ok]


def _facts(
    stream: ShardStream, samples: list[DecodedSample], *, with_text: bool
) -> dict[str, pa.Array]:
    shard = stream.shard.name
    for row, metadata in stream.late_metadata.items():
        fields = samples[row].sample.metadata
        fields.update({name: value for name, value in metadata.items() if name not in fields})
    records = [decoded.sample for decoded in samples]
    columns: dict[str, pa.Array] = {
        "uid": _strings([sample_uid(r.metadata, shard, r.key) for r in records]),
        "shard": _strings([shard] * len(records)),
        "key": _strings([r.key for r in records]),
        "row": pa.array([r.row for r in records], pa.int32()),
        "text": _strings([r.caption if with_text else None for r in records]),
        "url": _strings([_text(r.metadata, "url") for r in records]),
        "width": pa.array([decoded.width for decoded in samples], pa.int32()),
        "height": pa.array([decoded.height for decoded in samples], pa.int32()),
        "status": _strings([r.status.value for r in records]),
        "error": _strings([r.error for r in records]),
        "is_noisy": pa.array([_flag(r.metadata.get("is_noisy")) for r in records], pa.bool_()),
        "noise_kind": _strings([_text(r.metadata, "noise_kind") for r in records]),
    }
    return columns


def score_table(
    facts: Mapping[str, pa.Array], *, ok: Sequence[bool] | np.ndarray, scores: BlockScores
) -> pa.Table:
    """A row for each pair: (n,) `facts` about it, the scores of those that are `ok`."""
    scored, columns = np.asarray(ok, dtype=bool), dict(facts)
    split = np.where(scores.ncu_forget, "forget", "retain")
    for name, values in (
        ("similarity", scores.similarity),
        ("ncu_confidence", scores.ncu_confidence),
        ("ncu_split", split),
        ("disncl_clean", scores.disncl_clean),
        ("neg_clip_loss", scores.neg_clip_loss),
        ("i2t_rank", scores.i2t_rank),
        ("t2i_rank", scores.t2i_rank),
        ("block", scores.block),
    ):
        columns[name] = _scattered(values, scored, schema.SCORES.field(name).type)
    columns.setdefault("calibration_group", pa.nulls(len(scored), pa.string()))
    for name in schema.CALIBRATED_COLUMNS:
        columns[name] = pa.nulls(len(scored), schema.SCORES.field(name).type)
    return pa.table([columns[name] for name in schema.SCORES.names], schema=schema.SCORES)


def _check(table: pa.Table, stats: ShardStats) -> None:
    """Every sample has exactly one row; a bug that loses or doubles one must not be committed."""
    rows = table.column("row").to_numpy()
    if not np.array_equal(rows, np.arange(stats.rows)):
        raise AssertionError(f"rows of the shard are not 0 to {stats.rows - 1}")
    check_counts(table, stats)


def check_counts(table: pa.Table, stats: ShardStats) -> None:
    """Raise `AssertionError` unless the statuses account for all rows, and the scores for ok."""
    scored = table.num_rows - table.column("similarity").null_count
    if sum(stats.statuses.values()) != table.num_rows or scored != stats.ok:
        raise AssertionError(f"{scored} scored rows, but {stats.statuses} of {table.num_rows}")


def exported(table: pa.Table, image: torch.Tensor, text: torch.Tensor) -> ShardEmbeddings:
    """(m, d) embeddings of the scored rows of a table, to be written beside it."""
    ok = table.filter(pc.equal(table.column("status"), SkipReason.OK.value))
    metadata = ok.select(list(schema.EMBEDDING_METADATA_COLUMNS)).rename_columns(
        schema.EMBEDDING_METADATA.names
    )
    return ShardEmbeddings(image.half().cpu().numpy(), text.half().cpu().numpy(), metadata)


def _scattered(values: np.ndarray, ok: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Values of the scorable rows at their places, null elsewhere."""
    index = np.cumsum(ok) - 1
    return pa.array(values, kind).take(pa.array(index, mask=~ok))


def _strings(values: list[str | None] | list[str]) -> pa.Array:
    return pa.array(values, pa.string())


def _text(metadata: dict[str, object], name: str) -> str | None:
    value = metadata.get(name)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return bool(value) if isinstance(value, int) and value in (0, 1) else None
