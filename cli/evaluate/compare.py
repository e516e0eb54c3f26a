"""`ncclean evaluate compare`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import command
from ..options import JsonOption, QuietOption, SeedOption
from .tables import formatted, make_table, print_table

if TYPE_CHECKING:
    from ncclean.evaluation.comparison import Comparison


@command()
def compare(
    a: Annotated[
        str, typer.Argument(metavar="A", help="Result of one model: a JSON file or a folder.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The same of the other model.")],
    draws: Annotated[int, typer.Option(help="Resamples of the bootstrap.", min=1)] = 2000,
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare two models on the same data: each metric's difference with its 95 % interval.

    The images are resampled, with all their captions and for both models alike. A difference whose
    interval excludes 0 is marked with `*`.

    Example: `ncclean evaluate compare results/before results/after`
    """
    from ncclean.evaluation.comparison import compare_results
    from ncclean.evaluation.results import read_results

    found = compare_results(read_results(a), read_results(b), draws, seed)
    if json_:
        typer.echo(json.dumps({"comparisons": [each.to_json() for each in found], "draws": draws}))
    elif not quiet:
        _print(found)


def _print(found: list[Comparison]) -> None:
    names = {(each.a, each.b) for each in found}
    a, b = next(iter(names)) if len(names) == 1 else ("A", "B")
    if a == b:
        a, b = f"A: {a}", f"B: {b}"
    table = make_table("", "data set", "metric", a, b, "difference", "95 % interval", "")
    for each in found:
        for row, metric in enumerate(each.metrics):
            low, high = (formatted(metric.name, v, signed=True) for v in (metric.low, metric.high))
            table.add_row(
                "" if row else f"{each.dataset} ({each.images:,})",
                metric.name,
                formatted(metric.name, metric.a),
                formatted(metric.name, metric.b),
                formatted(metric.name, metric.difference, signed=True),
                f"{low} to {high}",
                "*" if metric.excludes_zero else "",
            )
    print_table(table)
