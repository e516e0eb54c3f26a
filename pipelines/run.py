"""`ncclean run`: run the stages of a recipe, from raw shards to a repaired model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ncclean.base.config import DRY_RUN
from ncclean.base.formats import Table, hours
from ncclean.base.options import Option, OptionError

from .command import Command, Result
from .display import Shown
from .progress import SILENT, Progress
from .shared_options import PricePerHour

if TYPE_CHECKING:
    from .recipe.plan import PlannedStage
    from .recipe.run import RunSummary


@dataclass(frozen=True, kw_only=True)
class Run(Command):
    """Run the stages of a recipe, from raw shards to a repaired model.

    Everything is checked first; a mistake is reported with its line. A stage is skipped if its
    options and inputs are unchanged, and resumed if it was interrupted. The page index.html in the
    run's folder links to all results.

    Example: `ncclean run demo --out demo_run`
    """

    name = "run"
    summary = "Run a recipe, from raw shards to a repaired model."
    resume_hint = "run the same command again to go on; finished stages are kept"
    is_stage = False

    recipe: Annotated[
        str | None,
        Option("A YAML file, or the name of a bundled recipe.", argument=True, metavar="RECIPE"),
    ] = None
    out: Annotated[
        str | None,
        Option(
            "Folder of the run (default: runs/RECIPE, with what was chosen).",
            metavar="PATH",
            local=True,
        ),
    ] = None
    set: Annotated[
        Sequence[str],
        Option(
            "Change a value, as in `finetune.epochs=2`, or a variable, as in `data=/mnt/cc3m`.",
            metavar="KEY=VALUE",
        ),
    ] = ()
    start_from: Annotated[
        str | None,
        Option("Run this stage and all later ones again.", flags=("--from",), metavar="STAGE"),
    ] = None
    dry_run: Annotated[bool, Option(DRY_RUN)] = False
    price_per_hour: PricePerHour = None
    list_recipes: Annotated[bool, Option("List the bundled recipes.", flags=("--list",))] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recipe is None and not self.list_recipes:
            raise OptionError("recipe", "name a recipe, or list the bundled ones with --list")

    def run(self, progress: Progress = SILENT) -> Result[Any]:
        """Run a recipe, plan it, or list the bundled ones; see `ncclean_pipelines.recipe`."""
        from .recipe.bundled import bundled_recipes, find_recipe

        if self.recipe is None or self.list_recipes:
            recipes = bundled_recipes()
            return self.result(recipes, _listed(recipes), values=recipes)
        from .recipe.load import load_recipe, run_name
        from .recipe.plan import budget, plan
        from .recipe.run import run

        path = find_recipe(self.recipe)
        name = run_name(path, self.set)
        folder = Path(self.out) if self.out is not None else Path("runs") / name
        loaded = load_recipe(path, folder, list(self.set))
        if self.dry_run:
            return planned(self, plan(loaded, self.start_from), loaded.about)
        if loaded.is_matrix:
            progress.say(budget(loaded, plan(loaded, self.start_from, probe=False)))
        return result_of(self, run(loaded, progress, self.start_from))


def result_of(command: Command, summary: RunSummary) -> Result[RunSummary]:
    """Return the result of a command that ran a recipe."""
    failures = {
        f"{stage}: {name}": reason
        for stage, failed in summary.failures.items()
        for name, reason in failed.items()
    }
    figures = {
        f"{stage}, {name}": value
        for stage, record in summary.records.items()
        for name, value in record.figures.items()
    }
    return command.result(
        summary, _tables(summary), figures=figures, made=[summary.folder], failures=failures
    )


def planned(
    command: Command, stages: list[PlannedStage], about: str | None = None
) -> Result[list[PlannedStage]]:
    """Return the result of a command that only shows which stages of a recipe would run."""
    values = {"about": about, "stages": [dataclasses.asdict(stage) for stage in stages]}
    hours = sum(stage.hours or 0 for stage in stages)
    return command.planned(stages, _plan(stages, about), hours, values)


def _tables(summary: RunSummary) -> Iterator[Shown]:
    """The tables of results, the figures of each stage, and where everything is."""
    yield from summary.tables
    rows = []
    for name, record in summary.records.items():
        figures = ", ".join(f"{key} {value}" for key, value in record.figures.items())
        notes = ["unchanged"] * (name not in summary.ran) + ["resumed"] * record.resumed
        noted = f" ({', '.join(notes)})" if notes else ""
        rows.append((name, f"{record.seconds:,.1f}{noted}", figures))
    yield Table("Stages", ("stage", "seconds", ""), tuple(rows), left=1, last_left=True)
    yield f"\nthe page of the run: {summary.page}"


def _listed(recipes: Mapping[str, str]) -> Iterator[Shown]:
    width = max(map(len, recipes))
    for name, about in recipes.items():
        lines = about.replace("\n", "\n" + " " * (width + 2))
        yield f"{name:<{width}}  {lines}"


def _plan(stages: Sequence[PlannedStage], about: str | None) -> Iterator[Shown]:
    if about:
        yield about
    rows = [
        (
            stage.name,
            stage.command,
            f"{stage.action}: {stage.reason}",
            "" if stage.pairs is None else f"{stage.pairs:,}",
            "" if stage.hours is None else hours(stage.hours),
            "; ".join(filter(None, [stage.about, stage.basis])),
        )
        for stage in stages
    ]
    heads = ("stage", "command", "", "pairs", "time", "")
    yield Table("", heads, tuple(rows), left=3, last_left=True)
    if any(stage.command == "select" and stage.action != "skip" for stage in stages):
        yield "pairs are estimated from the sizes of shards; behind a select they are upper bounds"
    for stage in stages:
        yield from (
            f"{stage.name} writes outside of the run's folder: {path}" for path in stage.elsewhere
        )
    stage_hours = [stage.hours for stage in stages if stage.hours is not None]
    if stage_hours:
        yield (
            f"about {hours(sum(stage_hours))} of computing for the stages with an estimate; "
            "starting, reading and saving come on top"
        )
