"""Estimate the cost of a scoring job from a few measured figures: hours, bytes, requests, memory.

The defaults are the figures of docs/scale.md. `ncclean score --dry-run` measures the speed of the
model on the machine at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from ncclean.runners.process_runner import clock_share

# Assumed for web captions and URLs. Rendered captions compress to 63 bytes a row, simulated rows
# with a URL to 67 (docs/scale.md).
SCORE_BYTES_PER_PAIR = 190.0
# Measured with 100,000 shards (docs/scale.md).
_LIST_BYTES_PER_SHARD = 5_000.0
_DRIVER_BYTES_PER_SHARD = 1_300.0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Measured speeds and sizes of scoring, from which its cost is estimated.

    `pairs_per_second` is one worker's, end to end; sizes are in bytes per pair.
    """

    pairs_per_second: float
    input_bytes: float
    score_bytes: float = SCORE_BYTES_PER_PAIR
    embedding_dim: int = 0  # 0: embeddings are not written
    finalize_rows_per_second: float = 1e6


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The estimated hours, bytes and memory of scoring.

    `worker_hours` is the sum over workers (GPU-hours on GPUs), `hours` the elapsed time. A shard
    belongs to one worker, so at most `busy_workers` work at once.
    """

    pairs: int
    shards: int
    workers: int
    busy_workers: int
    worker_hours: float
    hours: float
    finalize_hours: float
    bytes_read: int
    bytes_written: int
    read_bytes_per_second: float
    list_bytes: int
    driver_memory_bytes: int


def embedding_bytes(pairs: int, dim: int) -> int:
    """Return the bytes of both float16 embeddings of pairs, without ids and captions."""
    return 2 * 2 * pairs * dim


def estimate(
    pairs: int, rates: Rates, *, shards: int | None = None, workers: int = 1, finalizers: int = 1
) -> Cost:
    """Estimate hours, bytes and memory of scoring `pairs` pairs in `shards` shards.

    Raises `ValueError` for a rate that is not positive.
    """
    if rates.pairs_per_second <= 0 or rates.finalize_rows_per_second <= 0 or workers < 1:
        raise ValueError("rates and the number of workers must be positive")
    shards = max(1, pairs // 10_000) if shards is None else shards
    worker_seconds = pairs / rates.pairs_per_second
    # Parts are written, read again and rewritten with the calibrated columns.
    part_bytes = pairs * rates.score_bytes
    return Cost(
        pairs=pairs,
        shards=shards,
        workers=workers,
        busy_workers=min(workers, shards),
        worker_hours=worker_seconds / 3600,
        hours=worker_seconds / 3600 * clock_share(shards, workers),
        finalize_hours=pairs / rates.finalize_rows_per_second / 3600 / finalizers,
        bytes_read=int(pairs * rates.input_bytes + part_bytes),
        bytes_written=int(2 * part_bytes) + embedding_bytes(pairs, rates.embedding_dim),
        read_bytes_per_second=rates.input_bytes * rates.pairs_per_second * min(workers, shards),
        list_bytes=int(shards * _LIST_BYTES_PER_SHARD),
        driver_memory_bytes=int(shards * _DRIVER_BYTES_PER_SHARD),
    )
