"""Benchmarks of ncclean: ratios within one run, on whatever machine this is.

    python tests/benchmarks/run.py [--quick] [--only NAME ...] [--json FILE]

A target that is missed is reported (`passed`), not an error. Cores that other processes kept busy
during a benchmark are in the record: run it again if they were.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from machine import OtherProcesses
from measure import Row, Setting
from records import benchmark
from speed import decode, embeddings, end_to_end, export, feed, finalize, score, training

BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {
    "score": score.run,
    "decode": decode.run,
    "draft": decode.run_draft,
    "feed": feed.run,
    "end-to-end": end_to_end.run,
    "memory": embeddings.run_memory,
    "embeddings": embeddings.run,
    "finalize": finalize.run,
    "export": export.run,
    "training": training.run,
}


def run(
    quick: bool = False, only: tuple[str, ...] = tuple(BENCHMARKS), demo_model: str = "demo"
) -> Iterator[dict[str, Any]]:
    """The rows of some benchmarks; `quick` takes small sizes, under two minutes."""
    logging.basicConfig(level=logging.ERROR)  # open_clip warns of the random weights, as meant
    facts: dict[str, dict[str, float]] = {"seconds": {}, "other_processes": {}}
    with tempfile.TemporaryDirectory(prefix="ncclean-benchmarks-") as scratch:
        setting = Setting(quick, demo_model, Path(scratch))
        for name in only:
            print(f"{name} ...", file=sys.stderr, flush=True)
            start, others = time.perf_counter(), OtherProcesses()
            for row in BENCHMARKS[name](setting):
                yield {"benchmark": name, **row.to_json()}
            facts["other_processes"][name] = others.cores
            facts["seconds"][name] = round(time.perf_counter() - start, 1)
    return facts


if __name__ == "__main__":
    benchmark(run)
