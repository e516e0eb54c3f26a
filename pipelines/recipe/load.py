"""A recipe file to stages that are ready to run: references filled in, every option checked.

Nothing is run, and of the inputs nothing is looked at here (`check` does that).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclean.errors import InputError

from .commands import COMMANDS, Command
from .errors import RecipeError
from .model import COMMON, check_recipe, check_stage
from .references import RUN, fill, names_in, written
from .source import Source, read_source


@dataclass(frozen=True)
class Stage:
    """A stage with its options as values, and as text that names other stages (`symbolic`).

    `uses` are the earlier stages that it refers to. `pairs_per_second` is the stated speed.
    """

    name: str
    command: Command
    values: dict[str, Any]
    symbolic: dict[str, Any]
    uses: tuple[str, ...]
    request: Any
    about: str | None
    pairs_per_second: float | None

    @property
    def out(self) -> str:
        return str(self.values["out"])


@dataclass(frozen=True)
class Recipe:
    """A checked recipe; `folder` is that of its run."""

    name: str
    about: str | None
    source: Source
    variables: dict[str, Any]
    stages: dict[str, Stage]
    folder: Path

    def resolved(self) -> dict[str, Any]:
        """The recipe with every variable and default path filled in, as the run records it."""
        return {
            "about": self.about,
            "stages": {
                name: {"command": stage.command.name, **stage.values}
                for name, stage in self.stages.items()
            },
        }


def load_recipe(path: Path, folder: Path, changes: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe for a run in `folder`; `changes` are `--set` assignments.

    Raises `RecipeError`, with the line, for whatever is wrong with it.
    """
    source = read_source(path)
    for change in changes:
        source.change(change)
    return resolve(source, path.stem, folder)


def resolve(source: Source, name: str, folder: Path) -> Recipe:
    """See `load_recipe`."""
    model = check_recipe(source)
    variables = _variables(source, model.vars, list(model.stages))
    engine = model.engine.model_dump(exclude_unset=True)
    stages: dict[str, Stage] = {}
    for stage_name, given in model.stages.items():
        values = dict(given or {})
        values.setdefault("command", stage_name)
        if values["command"] in ("score", "finetune"):
            values = {**engine, **values}
        if stage_name == RUN:
            raise source.error(("stages", RUN), f"{written(RUN)} is the folder: use another name")
        stages[stage_name] = _stage(source, stage_name, values, variables, stages, folder)
    return Recipe(name, model.about, source, variables, stages, folder)


def _variables(source: Source, given: Mapping[str, Any], stages: list[str]) -> dict[str, Any]:
    """The variables; one may refer to those before it."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        where = ("vars", name)
        if name in stages or name == RUN:
            raise source.error(where, f"{name!r} is a stage too: {written(name)} would be both")
        if value is None:
            raise source.error(where, f"{name} has no value: write one, or --set {name}=VALUE")
        for reference in names_in(value):
            if reference not in found:
                raise source.error(where, f"no variable {reference!r} before {name!r}")
        found[name] = fill(value, found.__getitem__)
    return found


def _stage(
    source: Source,
    name: str,
    given: Mapping[str, Any],
    variables: Mapping[str, Any],
    before: Mapping[str, Stage],
    folder: Path,
) -> Stage:
    symbolic: dict[str, Any] = {}
    filled: dict[str, Any] = {}
    uses: list[str] = []
    for option, value in given.items():
        where = ("stages", name, option)
        for reference in names_in(value):
            _check_reference(source, where, reference, variables, before)
        symbolic[option] = fill(value, lambda n: variables[n] if n in variables else written(n))
        uses += [each.split(".")[0] for each in names_in(symbolic[option])]
        filled[option] = fill(symbolic[option], lambda n: _meaning(n, before, folder))
    values = check_stage(source, name, filled)
    command = COMMANDS[values.pop("command")]
    own = {key: values.pop(key, None) for key in COMMON - {"command"}}
    place = folder / name
    if values.get("out") is None:
        values["out"] = str(place / command.out) if command.out else str(place)
    for option, inside in command.inside.items():
        if isinstance(values.get(option), bool):
            values[option] = str(place / inside) if values[option] else None
    try:
        request = command.build(values)
    except InputError as error:
        blamed = _blamed(str(error), values)
        raise source.error(("stages", name, *([blamed] if blamed else [])), str(error)) from error
    return Stage(
        name=name,
        command=command,
        values=values,
        symbolic={key: value for key, value in symbolic.items() if key not in COMMON},
        uses=tuple(dict.fromkeys(each for each in uses if each != RUN)),
        request=request,
        about=own["about"],
        pairs_per_second=own["pairs_per_second"],
    )


def _check_reference(
    source: Source,
    where: tuple[str, ...],
    reference: str,
    variables: Mapping[str, Any],
    before: Mapping[str, Stage],
) -> None:
    stage, _, option = reference.partition(".")
    if reference in variables or reference == RUN:
        return
    if stage in before:
        values = before[stage].values
        if option and values.get(option) is None:
            known = ", ".join(key for key, value in values.items() if value is not None)
            raise source.error(where, f"the stage {stage!r} is given no {option!r}; it has {known}")
        return
    if stage == where[1]:
        raise source.error(where, f"the stage {stage!r} refers to itself")
    if stage in source.values["stages"]:
        raise source.error(where, f"the stage {stage!r} comes later: put it before {where[1]!r}")
    known = ", ".join([*variables, *before, RUN])
    raise source.error(
        where, f"{written(reference)} is no variable or earlier stage; there are {known}"
    )


def _meaning(reference: str, before: Mapping[str, Stage], folder: Path) -> Any:
    if reference == RUN:
        return str(folder)
    name, _, option = reference.partition(".")
    stage = before[name]
    return stage.values[option] if option else stage.command.reference(stage.out)


def _blamed(message: str, values: Mapping[str, Any]) -> str | None:
    """The option that a request's complaint is about."""
    named = [word.replace("-", "_") for word in re.findall(r"--([a-z][a-z-]*)", message)]
    words = [*named, *message.replace("-", "_").split()]
    return next((word for word in words if word in values), None)


__all__ = ["Recipe", "RecipeError", "Stage", "load_recipe", "resolve"]
