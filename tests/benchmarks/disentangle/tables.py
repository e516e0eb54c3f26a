"""The tables of disentanglement, from the records of the two disentanglement benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
# By what the page calls them.
OBJECTIVES = {
    "`information`": "information",
    "its stronger opponents": "stronger opponents",
    "`reconstruction`": "reconstruction",
    "`none`": "none",
}


def evidence_table(record: Record) -> Iterator[str]:
    """The paper's evidence, MINE and retrieval, with a map fitted between the exclusive halves."""
    yield from _table(
        record,
        OBJECTIVES,
        {
            "MINE, image": ("information/image", _number),
            "recall at 1: invariant": ("recall/invariant", _percent),
            "exclusive": ("recall/exclusive", _percent),
            "exclusive, fitted map": ("recall/exclusive, fitted", _percent),
        },
    )


def _table(
    record: Record, arms: Mapping[str, str], columns: Mapping[str, tuple[str, Any]]
) -> Iterator[str]:
    yield "| | seeds | " + " | ".join(columns) + " |"
    yield "|---|---|" + "---|" * len(columns)
    for name, arm in arms.items():
        seeds = [row["seed"] for row in record["rows"] if row["arm"] == arm]
        if seeds:
            cells = [_spread(_values(record, arm, key), form) for key, form in columns.values()]
            yield f"| {name} | {len(seeds)} | " + " | ".join(cells) + " |"


def _values(record: Record, arm: str, key: str) -> list[float]:
    return [row["values"][key] for row in record["rows"] if row["arm"] == arm]


def _spread(values: Sequence[float], form: Any) -> str:
    """Mean, and standard deviation where there are several."""
    if not values:
        return ""
    mean = form(statistics.mean(values))
    if len(values) == 1:
        return mean
    return f"{mean.removesuffix(' %')} ± {form(statistics.stdev(values))}"


def _number(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
