"""`ncclean evaluate compare`: compare the results of two models on the same data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ncclean.base.formats import Table, percentage
from ncclean.base.options import Option, Reads, Seed

from .command import Command, Result
from .display import Shown
from .evaluate_models import LEADING_METRICS
from .progress import SILENT, Progress
from .shared_options import Overwrite, json_option

if TYPE_CHECKING:
    from ncclean.evaluation.comparison import Comparison


@dataclass(frozen=True, kw_only=True)
class EvaluateCompare(Command):
    """Compare two models on the same data: each metric's difference with its 95 % interval.

    Resamples the images with all their captions, alike for both models. A difference whose interval
    excludes 0 is marked with *.

    Example: `ncclean evaluate compare results/before results/after`
    """

    name = "evaluate compare"
    summary = "Compare two models on the same data, with intervals."

    a: Annotated[
        str,
        Option(
            "Result of one model: a JSON file or a folder.",
            argument=True,
            metavar="A",
            reads=Reads.PATH,
        ),
    ]
    b: Annotated[
        str, Option("Result of the other model.", argument=True, metavar="B", reads=Reads.PATH)
    ]
    out: Annotated[str | None, json_option("comparison.json")] = None
    draws: Annotated[int, Option("Bootstrap resamples.", low=100)] = 2000
    seed: Seed = 0
    overwrite: Overwrite = False

    def run(self, progress: Progress = SILENT) -> Result[list[Comparison]]:
        """Compare two models' results on common data; see `ncclean.evaluation.comparison`."""
        from ncclean.base.output_mark import check_free
        from ncclean.evaluation.comparison import compare_results
        from ncclean.evaluation.results import read_results
        from ncclean.storage.run_folder import write_json

        check_free([self.out], self.name, self.overwrite)
        progress.say(f"comparing {self.a} and {self.b}")
        compared = compare_results(
            read_results(self.a), read_results(self.b), self.draws, self.seed
        )
        values = {
            "comparisons": [comparison.to_json() for comparison in compared],
            "draws": self.draws,
        }
        files = [write_json(self.out, values, self.name)] if self.out is not None else []
        figures = dict(map(_difference, compared))
        return self.result(compared, _summary(compared), figures=figures, made=files, values=values)


def _difference(comparison: Comparison) -> tuple[str, str]:
    metrics = comparison.metrics
    leading = next((m for m in metrics if m.name in LEADING_METRICS), metrics[0])
    sign = "+" if leading.difference >= 0 else ""
    return (
        comparison.dataset,
        f"{leading.name} {sign}{percentage(leading.name, leading.difference)}",
    )


def _summary(compared: Sequence[Comparison]) -> Iterator[Shown]:
    names = {(comparison.a, comparison.b) for comparison in compared}
    if len(names) == 1:
        yield from (f"{head}: {name}" for head, name in zip("AB", next(iter(names)), strict=True))
    rows = []
    for comparison in compared:
        for row, metric in enumerate(comparison.metrics):
            low, high = (
                percentage(metric.name, value, is_signed=True)
                for value in (metric.low, metric.high)
            )
            rows.append(
                (
                    "" if row else f"{comparison.dataset} ({comparison.images:,})",
                    metric.name,
                    percentage(metric.name, metric.a),
                    percentage(metric.name, metric.b),
                    percentage(metric.name, metric.difference, is_signed=True),
                    f"{low} to {high}",
                    "*" if metric.excludes_zero else "",
                )
            )
    heads = ("data set", "metric", "A", "B", "difference", "95 % interval", "")
    yield Table("", heads, tuple(rows), left=2)
