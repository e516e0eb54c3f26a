"""Memory of the process that runs `ncclean neighbours`, at growing corpora.

    python tests/benchmarks neighbours.memory --pairs 250_000 1_000_000

The embeddings of `neighbours.search`, of few dimensions: this process holds what grows with the
number of pairs, not with their vectors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from records import Row, benchmark

from neighbours.search import Simulation, searched

_FEW = ("--index", "ivf", "--k", "5", "--recall", "0.5", "--workers", "2")


def memory(
    pairs: tuple[int, ...] = (250_000, 1_000_000), dim: int = 96, memory_limit: str = "1GB",
    seed: int = 0, scratch: Path | None = None,
) -> Iterator[Row]:  # fmt: skip
    """A row for each number of pairs."""
    for count in pairs:
        with tempfile.TemporaryDirectory(prefix="ncclean-memory-", dir=scratch) as name:
            simulation = Simulation(count, dim, seed)
            row = searched(simulation, Path(name), "--memory-limit", memory_limit, *_FEW)
            yield {"version": "this", "pairs": count, **row}


if __name__ == "__main__":
    benchmark(memory)
