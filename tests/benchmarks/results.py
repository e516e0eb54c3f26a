"""What the benchmarks found: rows with targets, one table, one JSON file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from records import make_record, write_record
from rich.console import Console
from rich.table import Table

_PLAIN_WIDTH = 170  # of the table where there is no terminal to ask

_DISTURBING_CORES = 0.15


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


@dataclass
class Report:
    """All rows by benchmark, in the order in which they were measured."""

    quick: bool
    rows: dict[str, list[Row]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    other_processes: dict[str, float] = field(default_factory=dict)  # cores they kept busy

    def table(self) -> Table:
        table = Table(title="ncclean benchmarks" + (" (quick)" if self.quick else ""))
        for heading in ("benchmark", "measured"):
            table.add_column(heading, no_wrap=True)
        for heading in ("value", "ratio", "target"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("")
        table.add_column("note", style="dim")
        for benchmark, rows in self.rows.items():
            for index, row in enumerate(rows):
                table.add_row(
                    benchmark if index == 0 else "",
                    row.name,
                    f"{_short(row.value)} {row.unit}",
                    f"{row.ratio:.2f}x" if row.ratio is not None else "",
                    str(row.target or ""),
                    {True: "[green]pass", False: "[red]FAIL", None: ""}[row.passed],
                    row.note,
                    end_section=index == len(rows) - 1,
                )
        return table

    def show(self) -> None:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_PLAIN_WIDTH)
        console.print(self.table())
        for benchmark, cores in self.other_processes.items():
            if cores > _DISTURBING_CORES:
                console.print(
                    f"{benchmark}: other processes kept {cores:.1f} cores busy; run it again",
                    style="yellow",
                )

    def write(self, path: Path) -> None:
        rows = [
            {"benchmark": benchmark, **dataclasses.asdict(row), "passed": row.passed}
            for benchmark, measured in self.rows.items()
            for row in measured
        ]
        for row in rows:
            row["target"] = str(Target(**row["target"])) if row["target"] else None
        record = make_record(
            rows,
            settings={"quick": self.quick},
            seconds={name: round(seconds, 1) for name, seconds in self.seconds.items()},
            other_processes=self.other_processes,
        )
        if path.exists():
            record = joined(json.loads(path.read_text()), record)
        write_record(path, record)


def joined(earlier: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """The record with what an earlier one of the same tree and machine has besides.

    So a benchmark that other processes disturbed is run again by itself.
    """
    same = ("commit", "dirty", "versions", "machine", "settings")
    if record["dirty"] or any(earlier.get(name) != record[name] for name in same):
        return record
    kept = [row for row in earlier["rows"] if row["benchmark"] not in record["seconds"]]
    more = {name: earlier[name] | record[name] for name in ("seconds", "other_processes")}
    command = f"{earlier['command']} && {record['command']}"
    return record | more | {"command": command, "rows": [*kept, *record["rows"]]}


def _short(value: float) -> str:
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
