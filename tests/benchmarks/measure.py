"""Timing on a noisy machine: candidates take turns, and the best of the repeats counts.

What is measured are rows, with targets for some of them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from corpora import photograph_shards

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What every benchmark is told: how long it may take, the demo model, a folder to write to."""

    quick: bool
    demo_model: str
    scratch: Path

    def choose(self, *, full: int, quick: int) -> int:
        return quick if self.quick else full

    def photographs(self) -> list[Path]:
        """Two shards of photographs.

        Two are as few as the plain loop can share between its workers; batches end with a shard,
        and small ones would not be what large shards give.
        """
        size = self.choose(full=256, quick=64)
        return sorted(photograph_shards(self.scratch, 2, size).glob("*.tar"))


@dataclass(frozen=True)
class Timing(Generic[T]):
    """Seconds of every repeat, and what each returned."""

    seconds: list[float]
    results: list[T]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> str:
        """How far the slowest repeat lies above the best, for the notes."""
        if len(self.seconds) == 1:
            return "one run"
        slower = max(self.seconds) / self.best - 1
        return f"best of {len(self.seconds)}, slowest {slower:+.0%}"


def take_turns(candidates: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, Timing[T]]:
    """Run all candidates once, then again in reverse order, and so on, `repeats` times.

    What slows the machine down for a while slows all of them down, and none always comes first.
    """
    timings: dict[str, Timing[T]] = {name: Timing([], []) for name in candidates}
    names = list(candidates)
    for _ in range(repeats):
        for name in names:
            start = time.perf_counter()
            result = candidates[name]()
            timings[name].seconds.append(time.perf_counter() - start)
            timings[name].results.append(result)
        names.reverse()
    return timings


@dataclass(frozen=True)
class Target:
    """A bound on a row's `value` or `ratio`."""

    of: Literal["value", "ratio"]
    relation: Literal[">=", "<="]
    bound: float

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:,g}{'x' if self.of == 'ratio' else ''}"

    def met_by(self, number: float) -> bool:
        return number >= self.bound if self.relation == ">=" else number <= self.bound


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement; `ratio` says how it compares with another one of the same run."""

    name: str
    value: float
    unit: str
    ratio: float | None = None
    target: Target | None = None
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """None where there is no target."""
        if self.target is None:
            return None
        number = self.value if self.target.of == "value" else self.ratio
        return number is not None and self.target.met_by(number)

    def to_json(self) -> dict[str, Any]:
        """The row of a record."""
        target = str(self.target) if self.target is not None else None
        return {**dataclasses.asdict(self), "target": target, "passed": self.passed}
