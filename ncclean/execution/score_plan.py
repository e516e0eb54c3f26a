"""`ncclean score --dry-run`: estimate the size of the job and its cost."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ncclean.base.config import ScoreOptions
from ncclean.base.progress import Progress
from ncclean.data.counting import estimate_samples
from ncclean.data.reader import read_samples
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.cost import Rates, estimate
from ncclean.execution.encoder import EncoderRequest
from ncclean.models.estimator import Estimator

_SAMPLES_LOOKED_AT = 200
_TEXTS_TRIED = 512


@dataclass(frozen=True)
class ScorePlan:
    """The estimated size and hours of a scoring run, for `--dry-run`.

    `samples_per_second` is one worker's, measured here on one batch; `worker_hours` is the sum over
    `workers`, of which `busy_workers` have a shard at once; `hours` is the elapsed time.
    `further_texts`, such as sentences, are encoded with each of the first captions, and the speed
    includes their time. `cut_share` of these captions have more tokens than the model's
    `context_length`; both are None for embeddings.
    """

    shards: int
    bytes: int
    pairs: int
    device: str
    precision: str
    samples_per_second: float
    workers: int
    busy_workers: int
    worker_hours: float
    hours: float
    gpu_hours: float | None
    bytes_written: int
    read_bytes_per_second: float
    further_texts: float = 0.0
    cut_share: float | None = None
    context_length: int | None = None


def plan(
    shards: Sequence[ShardRef],
    request: EncoderRequest,
    options: ScoreOptions,
    workers: int,
    progress: Progress,
) -> ScorePlan:
    """Estimate pairs, bytes and hours of a scoring run, from the first samples and one batch.

    The model is tried on this machine, even if others will do the work.
    """
    pairs = estimate_samples(shards)
    columns = ColumnSources(options)
    encoder = request.open(options, columns)
    columns.check(encoder.facts)
    progress.say("measuring the speed")
    speed, facts = encoder.speed(), encoder.facts
    captions = _first_captions(shards, options) if facts.estimator is not None else []
    further, seconds = _further_texts(captions, columns, facts)
    pairs_per_second = 1 / (1 / speed.pairs_per_second + seconds)
    size = sum(shard.size for shard in shards)
    rates = Rates(
        pairs_per_second=pairs_per_second,
        input_bytes=size / max(pairs, 1),
        embedding_dim=speed.embedding_dim if options.embeddings else 0,
    )
    cost = estimate(pairs, rates, shards=len(shards), workers=workers)
    return ScorePlan(
        shards=len(shards),
        bytes=size,
        pairs=pairs,
        device=speed.device,
        precision=speed.precision,
        samples_per_second=round(pairs_per_second, 1),
        workers=workers,
        busy_workers=cost.busy_workers,
        worker_hours=round(cost.worker_hours, 6),
        hours=round(cost.hours, 6),
        gpu_hours=round(cost.worker_hours, 6) if speed.device.startswith("cuda") else None,
        bytes_written=cost.bytes_written,
        read_bytes_per_second=round(cost.read_bytes_per_second, 1),
        further_texts=round(further, 2),
        **_cut(captions, facts.estimator),
    )


def _first_captions(shards: Sequence[ShardRef], options: ScoreOptions) -> list[str]:
    """Return the first captions of the first shard; none if it cannot be read."""
    captions: list[str] = []
    with contextlib.suppress(ShardError):
        samples = read_samples(shards[0], options.caption_key)
        for sample in itertools.islice(samples, _SAMPLES_LOOKED_AT):
            captions += [caption.text for caption in sample.captions if caption.text is not None]
    return captions


def _further_texts(
    captions: Sequence[str], columns: ColumnSources, encoder: EncoderFacts
) -> tuple[float, float]:
    """Count the texts that the columns encode for each caption, and time them in seconds."""
    texts = columns.further_texts(captions, encoder) if captions else []
    if not texts or encoder.estimator is None:
        return 0.0, 0.0
    tried = texts[:_TEXTS_TRIED]
    encoder.estimator.encode_text(tried[: encoder.batch_size], encoder.batch_size)  # warm-up
    start = time.perf_counter()
    encoder.estimator.encode_text(tried, encoder.batch_size)
    of_each = (time.perf_counter() - start) / len(tried)
    return len(texts) / len(captions), of_each * len(texts) / len(captions)


def _cut(captions: Sequence[str], estimator: Estimator | None) -> dict[str, Any]:
    """Return `cut_share` and `context_length` of captions."""
    if estimator is None:
        return {}
    cut = estimator.cut(estimator.count_tokens(captions)) if captions else {}
    if not cut:
        return {}
    share = cut["captions_cut"] / len(captions)
    return {"cut_share": round(share, 4), "context_length": cut["context_length"]}
