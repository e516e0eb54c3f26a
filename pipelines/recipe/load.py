"""Load a recipe file into stages ready to run: references filled in, every option checked.

Nothing is run here, and no input is inspected (`check` does that).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclean.base.option_values import accept, check_known, renamed
from ncclean.base.options import OptionError, closest, parameters
from ncclean.base.stores import is_url
from ncclean.errors import InputError
from ncclean.recipes.choices import choose, write_out
from ncclean.recipes.matrix import expand
from ncclean.recipes.model import COMMON, check_common, check_recipe
from ncclean.recipes.references import RUN, check_size, fill, names_in, written
from ncclean.recipes.source import Source, read_source
from ncclean.recipes.stage_facts import StageFacts
from ncclean.storage.inputs import LOCAL_MODEL
from ncclean.storage.made_files import absolute, is_within

from ..command import Command, build
from ..stages import STAGES


@dataclass(frozen=True, kw_only=True)
class Stage(StageFacts):
    """A stage of a recipe: its command, ready to run, and its options.

    `values` are the given options, `symbolic` the same with references to stages kept. `uses` are
    the earlier stages that it refers to, `elsewhere` the places outside the run's folder that it
    writes to. `pairs_per_second` is the stated speed.
    """

    command: Command
    values: dict[str, Any]
    symbolic: dict[str, Any]
    uses: tuple[str, ...]
    elsewhere: tuple[str, ...]
    pairs_per_second: float | None

    @property
    def out(self) -> str:
        return str(self.values["out"])

    @property
    def reference(self) -> str:
        """The text that the name of the stage stands for in later stages."""
        return self.out if self.model is None else self.model


@dataclass(frozen=True)
class Recipe:
    """A recipe that has been read and checked; `folder` is that of its run."""

    name: str
    about: str | None
    source: Source
    stages: dict[str, Stage]
    folder: Path

    @property
    def is_matrix(self) -> bool:
        """Whether stages are repeated for several values."""
        return any(stage.cell for stage in self.stages.values())

    def forced_from(self, start_from: str | None) -> frozenset[str]:
        """Return the stages to run again: one, and all after it in the file.

        Raises `InputError` for an unknown stage.
        """
        bases = list(dict.fromkeys(stage.base for stage in self.stages.values()))
        if start_from is None:
            return frozenset()
        if start_from in self.stages:
            names = list(self.stages)
            if start_from not in bases:
                return frozenset(names[names.index(start_from) :])
        elif start_from not in bases:
            raise InputError(
                f"--from {start_from}: no such stage; the stages are {', '.join(bases)}"
            )
        again = bases[bases.index(start_from) :]
        return frozenset(name for name, stage in self.stages.items() if stage.base in again)

    def resolved(self) -> dict[str, Any]:
        """Return the recipe as the run records it, with all variables and paths filled in."""
        return {
            "about": self.about,
            "stages": {
                name: {"command": stage.command.name, **stage.values}
                for name, stage in self.stages.items()
            },
        }


def load_recipe(
    path: Path, folder: Path, changes: Sequence[str] = (), given_as: Mapping[str, str] | None = None
) -> Recipe:
    """Read and check a recipe for a run in `folder`; `changes` are `--set` assignments.

    `given_as` maps the key of an assignment to the option that a person used. Raises `RecipeError`,
    with the line, for any mistake.
    """
    source = read_source(path)
    choices = check_recipe(source).choices
    assigned = {change: change.partition("=") for change in changes}
    picks = {key: value for key, _, value in assigned.values() if key in choices}
    choose(source, picks)
    for change, (key, _, _) in assigned.items():
        if key not in picks:
            source.change(change, (given_as or {}).get(key))
    return resolve(source, path.stem, folder)


def run_name(path: Path, changes: Sequence[str]) -> str:
    """Return the name of a recipe's run, as `ncu-cc12m-repair`: each choice is its own run."""
    choices = check_recipe(read_source(path)).choices
    picks = dict(change.partition("=")[::2] for change in changes)
    names = (picks.get(choice, next(iter(values))) for choice, values in choices.items())
    return "-".join([path.stem, *names])


def resolve(source: Source, name: str, folder: Path) -> Recipe:
    """Fill in a recipe for a run in a folder; see `load_recipe`."""
    check_recipe(source)
    choose(source, {})
    write_out(source, _required)
    model = check_recipe(source)
    expand(source, model.matrix, model.repeats)
    variables = _variables(source, model.vars, list(source.values["stages"]))
    engine = model.engine.model_dump(exclude_unset=True)
    stages: dict[str, Stage] = {}
    for stage_name, options in source.values["stages"].items():
        if stage_name == RUN:
            raise source.error(
                ("stages", RUN), f"{written(RUN)} is the run's folder: rename the stage"
            )
        mapping = {"command": stage_name, **(options or {})}
        kind = _kind(source, stage_name, mapping["command"])
        if "engine" in parameters(kind):
            mapping = {**engine, **mapping}
        stages[stage_name] = _stage(source, stage_name, kind, mapping, variables, stages, folder)
    _check_outputs(source, stages)
    about = "\n".join(filter(None, [model.about, *source.chosen.values()])) or None
    return Recipe(name, about, source, stages, folder)


def _required(command: str) -> set[str]:
    """Return the required options of a command."""
    declared = parameters(STAGES[command]) if command in STAGES else {}
    return {name for name, parameter in declared.items() if parameter.is_required}


def _variables(source: Source, stated: Mapping[str, Any], stages: list[str]) -> dict[str, Any]:
    """Return the variables; each may refer to earlier ones."""
    variables: dict[str, Any] = {}
    for name, value in stated.items():
        where = ("vars", name)
        if name in stages or name == RUN:
            raise source.error(where, f"{name!r} names a stage too: rename one of them")
        if value is None:
            raise source.error(
                where, f"{name} has no value: give it one, or use --set {name}=VALUE"
            )
        for reference in names_in(value):
            if reference not in variables:
                raise source.error(where, f"there is no variable {reference!r} before {name!r}")
        variables[name] = _filled(source, where, value, variables.__getitem__)
    return variables


def _kind(source: Source, stage: str, command: Any) -> type[Command]:
    if command not in STAGES:
        hint = closest(str(command), list(STAGES))
        where = ("stages", stage, "command")
        raise source.error(where, f"no command {command!r}{hint}; there are {', '.join(STAGES)}")
    return STAGES[command]


def _stage(
    source: Source,
    name: str,
    kind: type[Command],
    stated: Mapping[str, Any],
    variables: Mapping[str, Any],
    before: Mapping[str, Stage],
    folder: Path,
) -> Stage:
    of_stage = {
        key: _filled(source, ("stages", name, key), stated[key], lambda n: variables.get(n, n))
        for key in COMMON & stated.keys()
    }
    common = check_common(source, name, of_stage)
    base, cell = source.cells.get(name, (name, {}))
    symbolic: dict[str, Any] = {}
    filled: dict[str, Any] = {}
    uses: list[str] = []
    for option, value in stated.items():
        if option in COMMON:
            continue
        where = ("stages", name, option)
        _check_code(source, where, kind, value)
        for reference in names_in(value):
            _check_reference(source, where, reference, variables, before)
        symbolic[option] = _filled(
            source, where, value, lambda n: variables[n] if n in variables else written(n)
        )
        uses += [reference.split(".")[0] for reference in names_in(symbolic[option])]
        filled[option] = _filled(
            source, where, symbolic[option], lambda n: _meaning(n, before, folder)
        )
    try:
        values = _accepted(kind, filled, folder / name)
        command = build(kind, values)
    except OptionError as error:
        raise source.error(("stages", name, error.option), str(error)) from error
    except InputError as error:
        blamed = _blamed(str(error), filled)
        raise source.error(("stages", name, *([blamed] if blamed else [])), str(error)) from error
    return Stage(
        name=name,
        command_name=kind.name,
        model=f"{LOCAL_MODEL}{values['out']}" if kind.makes_model else None,
        command=command,
        values=values,
        symbolic=symbolic,
        uses=tuple(dict.fromkeys(reference for reference in uses if reference != RUN)),
        elsewhere=tuple(_elsewhere(source, name, kind, symbolic, values, folder)),
        about=common.about,
        pairs_per_second=common.pairs_per_second,
        base=base,
        cell=cell,
    )


def _filled(
    source: Source, where: tuple[str, ...], value: Any, meaning: Callable[[str], Any]
) -> Any:
    try:
        filled = fill(value, meaning)
        check_size(filled)
    except InputError as error:
        raise source.error(where, str(error)) from error
    return filled


def _check_code(source: Source, where: tuple[str, ...], kind: type[Command], value: Any) -> None:
    """Refuse a Python function that the recipe itself names: whoever runs it must say so."""
    option = parameters(kind).get(where[-1])
    if option is None or not option.option.names_code or not value or where in source.changed:
        return
    names = names_in(value)
    if names and all(("vars", name) in source.changed for name in names):
        return
    raise source.error(
        where,
        f"{where[-1]} runs Python code, so a recipe cannot name it alone: give it on the command "
        f"line, --set {where[1]}.{where[2]}=MODULE:FUNCTION",
    )


def _accepted(kind: type[Command], filled: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Return the options in their types; default paths are in the stage's folder, `place`."""
    declared = {name: p for name, p in parameters(kind).items() if p.option.in_recipes}
    named = renamed(filled, declared)
    check_known(named, declared, kind.name)
    values = {}
    for name, value in named.items():
        inside = declared[name].option.inside
        if inside is not None and name != "out" and isinstance(value, bool):
            value = str(place / inside) if value else None
        values[name] = accept(declared[name], value)
    if values.get("out") is None:
        inside = declared["out"].option.inside
        values["out"] = str(place / inside) if inside else str(place)
    return values


def _elsewhere(
    source: Source,
    stage: str,
    kind: type[Command],
    symbolic: Mapping[str, Any],
    values: Mapping[str, Any],
    folder: Path,
) -> Iterator[str]:
    """Return the outputs of a stage outside the run's folder.

    Raises `RecipeError` for one that is not stated as absolute: somebody else's recipe must not
    write where its reader does not expect it.
    """
    for option, parameter in parameters(kind).items():
        place = values.get(option)
        if parameter.option.inside is None or not isinstance(place, str):
            continue
        target = place if is_url(place) else os.path.realpath(place)
        if is_within(target, os.path.realpath(folder)):
            continue
        if is_within(absolute(place), os.path.abspath(folder)):  # by a link
            yield target
            continue
        text = str(symbolic.get(option))
        # For `${stage}/x`, the stage has stated it; `${stage}/../x` is another place.
        is_stated = os.path.isabs(text) or ".." not in text.split("/")
        if not is_url(place) and not (os.path.isabs(place) and is_stated):
            raise source.error(
                ("stages", stage, option),
                f"{option}: {text} is outside of the run's folder: write {written(RUN)}/NAME, or "
                "an absolute path to mean another folder",
            )
        yield place


def _check_outputs(source: Source, stages: Mapping[str, Stage]) -> None:
    """Refuse two stages with one output: each would mistake the other's files for its own."""
    writers: dict[str, str] = {}
    for name, stage in stages.items():
        place = stage.out.rstrip("/") if is_url(stage.out) else os.path.abspath(stage.out)
        earlier = writers.setdefault(place, name)
        is_shared = not stage.command.has_record and Path(place).suffix == ""
        if earlier != name and not (is_shared and not stages[earlier].command.has_record):
            raise source.error(
                ("stages", name, "out"),
                f"the stages {earlier!r} and {name!r} both write to {stage.out}: "
                "give one of them another `out`",
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
            names = ", ".join(key for key, value in values.items() if value is not None)
            raise source.error(where, f"the stage {stage!r} is given no {option!r}; it has {names}")
        return
    if stage == where[1]:
        raise source.error(where, f"the stage {stage!r} refers to itself")
    if stage in source.values["stages"]:
        raise source.error(where, f"the stage {stage!r} comes later: put it before {where[1]!r}")
    references = [*variables, *before, RUN]
    near = closest(reference, references)
    raise source.error(
        where,
        f"{written(reference)} is not a variable or an earlier stage{near}; "
        f"there are {', '.join(references)}",
    )


def _meaning(reference: str, before: Mapping[str, Stage], folder: Path) -> Any:
    if reference == RUN:
        return str(folder)
    name, _, option = reference.partition(".")
    return before[name].values[option] if option else before[name].reference


def _blamed(message: str, values: Mapping[str, Any]) -> str | None:
    """Return the option at the start of a complaint about several."""
    named = [word.replace("-", "_") for word in re.findall(r"--([a-z][a-z-]*)", message)]
    words = [*named, *message.replace("-", "_").split()]
    return next((word for word in words if word in values), None)
