"""What a scoring job costs, from figures of your own.

    python tests/benchmarks scale.cost --pairs 1e9 --pairs-per-second 3702 --workers 64

The defaults are the figures of docs/scale.md, with the speed of the GPU in docs/records/gpu.json.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from records import ROOT, Row, benchmark

from ncclean.execution.cost import SCORE_BYTES_PER_PAIR, Rates, estimate
from scale.billion import gpu_row

_GPU = gpu_row(json.loads((ROOT / "docs" / "records" / "gpu.json").read_text("utf-8")))


def cost(
    pairs: float = 1e9, shards: int | None = None, pairs_per_second: float = _GPU["score"],
    input_bytes: float = 26_000.0, score_bytes: float = SCORE_BYTES_PER_PAIR,
    embedding_dim: int = 0, finalize_rows_per_second: float = 1e6, workers: int = 1,
    finalizers: int = 1,
) -> Iterator[Row]:  # fmt: skip
    """Hours, bytes and memory of a job; without `shards` each has 10,000 pairs.

    `pairs_per_second` are those of one worker, `input_bytes` of a pair in a shard; `finalizers` are
    machines that finalize.
    """
    rates = Rates(
        pairs_per_second=pairs_per_second,
        input_bytes=input_bytes,
        score_bytes=score_bytes,
        embedding_dim=embedding_dim,
        finalize_rows_per_second=finalize_rows_per_second,
    )
    job = estimate(int(pairs), rates, shards=shards, workers=workers, finalizers=finalizers)
    yield dataclasses.asdict(job)


if __name__ == "__main__":
    benchmark(cost)
