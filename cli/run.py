"""`ncclean run`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import SOME_FAILED, command
from .options import JsonOption, QuietOption

if TYPE_CHECKING:
    from ncclean_pipelines.recipe.plan import PlannedStage
    from ncclean_pipelines.recipe.run import RunSummary


@command(resume_hint="run the same command again to go on; finished stages are kept")
def run(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a bundled recipe."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the run [default: runs/RECIPE].")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another value: `finetune.epochs=2`, or `data=/mnt/cc3m` for a variable. "
            "Repeatable.",
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="STAGE", help="Run this stage and all after it again."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, show what would run, with hours.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show the bundled recipes.")] = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the stages of a recipe, from raw shards to a repaired model.

    The recipe is checked before anything starts; a mistake is named with its line. A stage whose
    options and inputs have not changed is skipped, an interrupted one goes on. The folder of the
    run has a page, `index.html`, that links everything.

    Example: `ncclean run demo --out demo_run`
    """
    from ncclean_pipelines.recipe.bundled import bundled_recipes, find_recipe

    if list_:
        _print_list(bundled_recipes(), json_)
        return
    if recipe is None:
        raise typer.BadParameter("name a recipe, or --list them", param_hint="RECIPE")
    path = find_recipe(recipe)
    from ncclean_pipelines.recipe.load import load_recipe
    from ncclean_pipelines.recipe.plan import plan
    from ncclean_pipelines.recipe.run import run as run_recipe

    from .run_progress import make_run_progress

    loaded = load_recipe(path, out or Path("runs") / path.stem, set_ or [])
    if dry_run:
        stages = plan(loaded, from_)
        if json_:
            typer.echo(json.dumps({"stages": [dataclasses.asdict(stage) for stage in stages]}))
        else:
            _print_plan(stages)
        return
    with make_run_progress(quiet) as progress:
        summary = run_recipe(loaded, progress, from_)
    if json_:
        typer.echo(json.dumps(summary.to_json()))
    elif not quiet:
        print_summary(summary)
    if summary.failures:
        raise typer.Exit(SOME_FAILED)


def _print_list(recipes: dict[str, str], json_: bool) -> None:
    if json_:
        typer.echo(json.dumps(recipes))
        return
    width = max(map(len, recipes))
    for name, about in recipes.items():
        typer.echo(f"{name:<{width}}  {about}")


def _print_plan(stages: list[PlannedStage]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table("stage", "command", "", "pairs", "hours", "", box=SIMPLE_HEAD, show_edge=False)
    table.columns[3].justify = table.columns[4].justify = "right"
    for stage in stages:
        table.add_row(
            stage.name,
            stage.command,
            f"{stage.action}: {stage.reason}",
            "" if stage.pairs is None else f"{stage.pairs:,}",
            "" if stage.hours is None else f"{stage.hours:,.2f}",
            stage.basis,
        )
    console = Console(highlight=False)
    console.print(table)
    known = [stage.hours for stage in stages if stage.hours is not None]
    if known:
        console.print(f"about {sum(known):,.2f} hours for the stages with an estimate")


def print_summary(summary: RunSummary) -> None:
    """The tables of results, the figures of each stage, and where everything is."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for each in summary.tables:
        shown = Table(
            *each.heads, title=f"\n{each.title}", title_justify="left", box=SIMPLE_HEAD,
            show_edge=False,
        )  # fmt: skip
        shown.columns[0].no_wrap = True  # names stay whole, the heads of the others break instead
        for column in shown.columns[1:]:
            column.justify = "right"
        for row in each.rows:
            shown.add_row(*row)
        console.print(shown)
    stages = Table(
        "stage", "seconds", "", title="\nStages", title_justify="left", box=SIMPLE_HEAD,
        show_edge=False,
    )  # fmt: skip
    stages.columns[1].justify = "right"
    for name, record in summary.records.items():
        figures = ", ".join(f"{key} {value}" for key, value in record.figures.items())
        skipped = "" if name in summary.ran else " (unchanged)"
        stages.add_row(name, f"{record.seconds:,.1f}{skipped}", figures)
    console.print(stages)
    for name, failures in summary.failures.items():
        for what, reason in failures.items():
            console.print(f"failed: {name}: {what}: {reason}", style="red", soft_wrap=True)
    console.print(f"\nthe page of the run: {summary.page}", soft_wrap=True)
