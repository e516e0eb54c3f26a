"""Results of evaluations for people: tables on stdout, the same as JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ncclean.evaluation.results import Evaluation


def stage_printer(quiet: bool) -> Callable[[str], None]:
    """Says on stderr what an evaluation is at."""

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    return say


def make_table(title: str, *heads: str) -> Table:
    """The first two columns to the left, figures to the right, nothing cut off."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(
        *heads,
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for number, column in enumerate(made.columns):
        column.no_wrap = True
        column.justify = "left" if number < 2 else "right"
    return made


def print_table(table: Table) -> None:
    """As wide as it takes: lines that the terminal breaks, rather than figures cut off."""
    from rich.console import Console
    from rich.measure import Measurement

    wide = Console(width=1000)
    needed = Measurement.get(wide, wide.options, table).maximum
    console = Console(highlight=False)
    console.width = max(console.width, needed)
    console.print(table)


def show_results(
    results: Sequence[Evaluation], title: str, out: str | None, *, as_json: bool, quiet: bool
) -> None:
    """A row for each metric of each set, a column for each model; with `as_json` all there is."""
    if as_json:
        typer.echo(json.dumps({"results": [each.to_json() for each in results], "out": out}))
        return
    if quiet:
        return
    models = list(dict.fromkeys(each.label for each in results))
    table = make_table(title, "data set", "metric", *models)
    for dataset in dict.fromkeys(each.dataset for each in results):
        found = {each.label: each.metrics for each in results if each.dataset == dataset}
        names = dict.fromkeys(name for metrics in found.values() for name in metrics)
        for row, name in enumerate(names):
            cells = (formatted(name, found[model].get(name)) for model in models)
            table.add_row("" if row else dataset, name, *cells)
    print_table(table)
    for each in results:
        if each.skipped:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in each.skipped.items())
            typer.echo(f"left out of {each.dataset} for {each.label}: {counts}")
    if out is not None:
        typer.echo(f"written to {out}")


def formatted(metric: str, value: Any, signed: bool = False) -> str:
    """A share as a percentage; `rsum` is a sum of percentages."""
    if value is None:
        return "-"
    sign = "+" if signed else ""
    if metric.endswith("rsum"):
        return f"{value:{sign}.1f}"
    return f"{100 * value:{sign}.1f}" if signed else f"{100 * value:.1f}%"
