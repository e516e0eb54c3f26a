"""What a scoring job costs, from a few measured figures: hours, bytes, requests, memory.

    python -m ncclean_pipelines.jobs.cost --pairs 1e9 --pairs-per-second 3702 --workers 64

The defaults are the figures of docs/scale.md; put in your own. `ncclean score --dry-run` measures
the speed of the model on the machine at hand and does the same arithmetic.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

# Assumed for captions and URLs of the web. Rendered captions compress to 63 bytes a row, simulated
# rows with a URL to 67 (docs/scale.md).
SCORE_BYTES_PER_PAIR = 190.0
# float16 of both embeddings; ids and captions come on top.
_EMBEDDING_BYTES = 2 * 2
# Measured with 100,000 shards (docs/scale.md).
_MANIFEST_BYTES_PER_SHARD = 3_300.0
_DRIVER_BYTES_PER_SHARD = 800.0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Measured figures. `pairs_per_second` is one worker's, end to end; sizes are per pair."""

    pairs_per_second: float
    input_bytes: float
    score_bytes: float = SCORE_BYTES_PER_PAIR
    embedding_dim: int = 0  # 0: embeddings are not written
    finalize_rows_per_second: float = 1e6


@dataclass(frozen=True, kw_only=True)
class Cost:
    """`worker_hours` is the sum over workers (GPU-hours on GPUs), `hours` what a clock shows."""

    pairs: int
    shards: int
    workers: int
    worker_hours: float
    hours: float
    finalize_hours: float
    bytes_read: int
    bytes_written: int
    read_bytes_per_second: float
    manifest_bytes: int
    driver_memory_bytes: int


def estimate(
    pairs: int, rates: Rates, *, shards: int | None = None, workers: int = 1, finalizers: int = 1
) -> Cost:
    """The cost of scoring `pairs` pairs in `shards` shards (10,000 pairs each by default).

    Raises `ValueError` for a rate that is not positive.
    """
    if rates.pairs_per_second <= 0 or rates.finalize_rows_per_second <= 0 or workers < 1:
        raise ValueError("rates and the number of workers must be positive")
    shards = max(1, pairs // 10_000) if shards is None else shards
    worker_seconds = pairs / rates.pairs_per_second
    # Parts are written, read again and rewritten with the calibrated columns.
    part_bytes = pairs * rates.score_bytes
    embeddings = pairs * _EMBEDDING_BYTES * rates.embedding_dim
    return Cost(
        pairs=pairs,
        shards=shards,
        workers=workers,
        worker_hours=worker_seconds / 3600,
        hours=worker_seconds / 3600 / workers,
        finalize_hours=pairs / rates.finalize_rows_per_second / 3600 / finalizers,
        bytes_read=int(pairs * rates.input_bytes + part_bytes),
        bytes_written=int(2 * part_bytes + embeddings),
        read_bytes_per_second=rates.input_bytes * rates.pairs_per_second * workers,
        manifest_bytes=int(shards * _MANIFEST_BYTES_PER_SHARD),
        driver_memory_bytes=int(shards * _DRIVER_BYTES_PER_SHARD),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=float, default=1e9)
    parser.add_argument("--shards", type=int, help="default: 10,000 pairs each")
    parser.add_argument("--pairs-per-second", type=float, default=3702.0, help="of one worker")
    parser.add_argument("--input-bytes", type=float, default=26_000.0, help="of a pair in a shard")
    parser.add_argument("--score-bytes", type=float, default=SCORE_BYTES_PER_PAIR)
    parser.add_argument("--embedding-dim", type=int, default=0, help="0: not written")
    parser.add_argument("--finalize-rows-per-second", type=float, default=1e6)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--finalizers", type=int, default=1, help="machines that finalize")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rates = Rates(
        pairs_per_second=args.pairs_per_second,
        input_bytes=args.input_bytes,
        score_bytes=args.score_bytes,
        embedding_dim=args.embedding_dim,
        finalize_rows_per_second=args.finalize_rows_per_second,
    )
    cost = estimate(
        int(args.pairs),
        rates,
        shards=args.shards,
        workers=args.workers,
        finalizers=args.finalizers,
    )
    if args.json:
        print(json.dumps(dataclasses.asdict(cost)))
        return
    table = Table(show_header=False, box=None)
    for name, value in (
        ("pairs", f"{cost.pairs:,} in {cost.shards:,} shards"),
        ("worker-hours", f"{cost.worker_hours:,.1f} (GPU-hours on GPUs)"),
        ("hours", f"{cost.hours:,.1f} on {cost.workers} workers, all of them busy"),
        ("finalize", f"{cost.finalize_hours:,.2f} hours"),
        ("read", f"{cost.bytes_read / 1e12:,.2f} TB, {cost.read_bytes_per_second / 1e6:,.0f} MB/s"),
        ("written", f"{cost.bytes_written / 1e12:,.2f} TB"),
        ("manifest", f"{cost.manifest_bytes / 1e6:,.0f} MB"),
        ("driver memory", f"{cost.driver_memory_bytes / 1e6:,.0f} MB for the shards"),
    ):
        table.add_row(name, value)
    Console().print(table)


if __name__ == "__main__":
    main()
