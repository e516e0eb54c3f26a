"""What a scoring job costs, from figures of your own.

    python tests/benchmarks scale.cost --pairs 1e9 --pairs-per-second 3702 --workers 64

The defaults are the figures of docs/scale.md, with the speed of the GPU in docs/records/gpu.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from records import ROOT
from rich.console import Console
from rich.table import Table

from ncclean.execution.cost import SCORE_BYTES_PER_PAIR, Rates, estimate
from scale.billion import gpu_row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=float, default=1e9)
    parser.add_argument("--shards", type=int, help="default: 10,000 pairs each")
    gpu = json.loads((ROOT / "docs" / "records" / "gpu.json").read_text("utf-8"))
    speed = gpu_row(gpu)["score"]
    parser.add_argument("--pairs-per-second", type=float, default=speed, help="of one worker")
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
        int(args.pairs), rates, shards=args.shards, workers=args.workers, finalizers=args.finalizers
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
        ("list of shards", f"{cost.list_bytes / 1e6:,.0f} MB"),
        ("driver memory", f"{cost.driver_memory_bytes / 1e6:,.0f} MB for the shards"),
    ):
        table.add_row(name, value)
    Console().print(table)


if __name__ == "__main__":
    main()
