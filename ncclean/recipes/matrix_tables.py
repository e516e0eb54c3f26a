"""Tabulate repeated stages: mean and standard deviation over the seeds of each cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from ncclean.base.estimates import Estimate
from ncclean.base.formats import Table
from ncclean.evaluation.noise_evaluation import ALL
from ncclean.recipes.folder import StageRecord
from ncclean.recipes.matrix import of_cell
from ncclean.recipes.stage_facts import StageFacts
from ncclean.recipes.tables import named_results, result_tables

DETECTION = ("auroc", "average_precision", "precision", "recall", "f1")
_Cell = tuple[tuple[str, Any], ...]


@dataclass
class Means:
    """Values of several runs by row and column, shown as mean and standard deviation."""

    title: str
    rows: dict[tuple[str, _Cell], dict[str, list[float]]] = field(default_factory=dict)

    def add(self, name: str, cell: Mapping[str, Any], column: str, value: float | None) -> None:
        """Add one value of a run; the cell's values except seed and repeat distinguish rows."""
        row = self.rows.setdefault((name, tuple(of_cell(cell))), {})
        row.setdefault(column, []).append(math.nan if value is None else value)

    def table(self, first: str, digits: int) -> Table:
        """A row for each cell and name, a column for each figure.

        A single run has no deviation.
        """
        columns = list(dict.fromkeys(name for row in self.rows.values() for name in row))
        variables = list(dict.fromkeys(key for _, cell in self.rows for key, _ in cell))
        ordered = sorted(self.rows, key=lambda row: _place(row[1], self.rows))
        rows = []
        for name, cell in ordered:
            values = self.rows[name, cell]
            variable_values = dict(cell)
            runs = max(map(len, values.values()))
            rows.append(
                (
                    *(str(variable_values.get(variable, "")) for variable in variables),
                    name,
                    str(runs),
                    *(_spread(values.get(column, ()), runs, digits) for column in columns),
                )
            )
        heads = (*variables, first, "runs", *columns)
        return Table(self.title, heads, tuple(rows), left=len(variables) + 1)


def tables_of(
    stages: Mapping[str, StageFacts], records: Mapping[str, StageRecord]
) -> Iterator[Table]:
    """The tables of a run, means and deviations where its stages are repeated."""
    if not any(stage.cell for stage in stages.values()):
        yield from result_tables(stages, records)
        return
    models: dict[str, Means] = {}
    noise: dict[str, Means] = {}
    rates: dict[str, Means] = {}
    for name, record in records.items():
        stage = stages[name]
        if not record.done:
            continue
        if record.command == "evaluate noise":
            title = f"{stage.base}: detection of all noise, mean and standard deviation"
            means = noise.setdefault(stage.base, Means(title))
            for score in record.result["scores"]:
                report = next(k["report"] for k in score["kinds"] if k["kind"] == ALL)
                for metric in DETECTION:
                    name = metric.replace("_", " ").replace("auroc", "AUROC")
                    means.add(score["column"], stage.cell, name, report[metric])
        if record.command == "score":
            rate = Estimate.of_fields(record.result, "noise_rate")
            title = f"{stage.base}: estimated noise rate, percent"
            means = rates.setdefault(stage.base, Means(title))
            for name, value in (("low", rate.low), ("estimate", rate.value), ("high", rate.high)):
                means.add(stage.base, stage.cell, name, 100 * value if rate.is_known else None)
    for name, model, result in named_results(stages, records):
        title = f"{result['dataset']}: mean and standard deviation, percent"
        means = models.setdefault(f"{result['dataset']} {records[name].command}", Means(title))
        for metric, value in result["metrics"].items():
            percent = value if value is None or metric.endswith("rsum") else 100 * value
            means.add(model, stages[name].cell, _short(metric), percent)
    yield from (means.table("score", 3) for means in noise.values())
    yield from (means.table("stage", 1) for means in rates.values())
    yield from (means.table("model", 1) for means in models.values())


def _place(cell: _Cell, rows: Iterable[tuple[str, _Cell]]) -> int:
    """Order cells as in the run, with the models of a cell beside each other."""
    return list(dict.fromkeys(other for _, other in rows)).index(cell)


def _spread(values: Iterable[float], runs: int, digits: int) -> str:
    """`73.1 ± 0.4`, with the deviation of the sample; `(2)` runs if not all have a value."""
    measured = [value for value in values if not math.isnan(value)]
    if not measured:
        return "-"
    text = f"{mean(measured):.{digits}f}"
    text = f"{text} ± {stdev(measured):.{digits}f}" if len(measured) > 1 else text
    return text if len(measured) == runs else f"{text} ({len(measured)})"


def _short(metric: str) -> str:
    """`image R@1` for the name that clip_benchmark has."""
    return metric.replace("_retrieval_recall@", " R@")
