"""The table of disentanglement, from the records of the two disentanglement benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from record_tables import heading, line

Record = Mapping[str, Any]
_OBJECTIVES = ("information", "none")  # the records also have `reconstruction`


def evidence_table(simulated: Record, demo: Record) -> Iterator[str]:
    """The paper's evidence, MINE and retrieval, with a map fitted between the exclusive halves."""
    yield from heading("features, `--disentangle`", "MINE, image", "recall at 1, fitted map, %")
    for name, record in (("simulated", simulated), ("`demo`", demo)):
        for objective in _OBJECTIVES:
            rows = [row["values"] for row in record["rows"] if row["arm"] == objective]
            yield line(
                f"{name}, `{objective}`",
                _spread([row["information/image"] for row in rows], digits=2),
                _spread([100 * row["recall/exclusive, fitted"] for row in rows]),
            )


def _spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation over the seeds."""
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
