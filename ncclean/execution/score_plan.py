"""`ncclean score --dry-run`: the size of the job, and what it would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclean.config import ScoreOptions
from ncclean.data.estimate import estimate_samples
from ncclean.data.shards import ShardRef
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.cost import Rates, estimate
from ncclean.execution.encoder import EncoderRequest
from ncclean.progress import Progress


@dataclass(frozen=True)
class ScorePlan:
    """The estimate of `--dry-run`: the size of the job and its hours.

    `samples_per_second` is one worker's, as measured here on one batch; `worker_hours` is the sum
    over `workers`, `hours` what a clock would show.
    """

    shards: int
    bytes: int
    pairs: int
    device: str
    precision: str
    samples_per_second: float
    workers: int
    worker_hours: float
    hours: float
    gpu_hours: float | None
    bytes_written: int
    read_bytes_per_second: float


def plan(
    shards: Sequence[ShardRef],
    request: EncoderRequest,
    options: ScoreOptions,
    workers: int,
    progress: Progress,
) -> ScorePlan:
    """Estimate pairs, bytes and hours of a scoring run, from the first samples and one batch.

    The model is tried on this machine, also where other machines will do the work.
    """
    pairs = estimate_samples(shards)
    columns = ColumnSources(options)
    encoder = request.open(options, columns)
    columns.check(encoder.facts)
    progress.say("measuring the speed")
    speed = encoder.speed()
    size = sum(shard.size for shard in shards)
    rates = Rates(
        pairs_per_second=speed.pairs_per_second,
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
        samples_per_second=round(speed.pairs_per_second, 1),
        workers=workers,
        worker_hours=round(cost.worker_hours, 6),
        hours=round(cost.hours, 6),
        gpu_hours=round(cost.worker_hours, 6) if speed.device.startswith("cuda") else None,
        bytes_written=cost.bytes_written,
        read_bytes_per_second=round(cost.read_bytes_per_second, 1),
    )
