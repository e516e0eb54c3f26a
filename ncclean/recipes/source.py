"""Read a YAML file as plain values that remember their lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ncclean.base.options import closest
from ncclean.base.text_files import compose_yaml, load_yaml, read_text
from ncclean.errors import InputError

Path_ = tuple[str | int, ...]


class RecipeError(InputError):
    """A mistake in a recipe; the message begins with the file and the line."""


@dataclass
class Source:
    """The values of a recipe, where each came from, and the text for the record.

    `lines` are counted from 1, by the keys that lead to a value; `changed` are those given outside
    it, with the option that a person knows: `--set model.epochs`, or `--model`. `cells` are filled
    by `matrix.expand`: of a repeated stage, its name in the file and its values. `axes` are the
    names of `for`, `arms` those of a stage to run, `left_out` the null names, and `chosen` has the
    recipe's description of each chosen value.
    """

    name: str
    text: str
    values: dict[str, Any]
    lines: dict[Path_, int]
    changed: dict[Path_, str] = field(default_factory=dict)
    cells: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    axes: frozenset[str] = frozenset()
    arms: dict[str, list[str] | None] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    chosen: dict[str, str] = field(default_factory=dict)

    def error(self, where: Sequence[str | int], sentence: str) -> RecipeError:
        """Build the error for a value; it begins with the line of the value or its container."""
        at = tuple(where)
        while at and at not in self.lines and at not in self.changed:
            at = at[:-1]
        if at in self.changed:
            return RecipeError(f"{self.changed[at]}: {sentence}")
        return RecipeError(f"{self.name}, line {self.lines.get(at, 1)}: {sentence}")

    def follow(self, old: Path_, new: Path_) -> None:
        """Note that the value at `new` is written, or was changed, at `old`."""
        count = len(old)
        self.lines |= {
            (*new, *at[count:]): line for at, line in self.lines.items() if at[:count] == old
        }
        self.changed |= {
            (*new, *at[count:]): text for at, text in self.changed.items() if at[:count] == old
        }

    def change(self, assignment: str, given_as: str | None = None) -> None:
        """Apply one `--set KEY=VALUE`; the value is YAML.

        `given_as` is its name in errors, by default `--set KEY`. Raises `RecipeError` for an
        unknown stage or variable, and `InputError` for invalid YAML.
        """
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set takes KEY=VALUE, got {assignment!r}")
        where = self.assign(key, load_yaml(text, f"--set {key}"))
        self.changed[where] = given_as or f"--set {key.removeprefix('vars.')}"

    def assign(self, key: str, value: Any, *, declares: bool = False) -> Path_:
        """Set a value, and return the keys that lead to it in `values`.

        `name` is a variable, or a name of `for`: a list repeats stages, a single value does not.
        `stage.option` is an option of a stage or an arm, `stage.arms` the names of the arms to run
        (null for all), `stage` its replacement. Null removes a name and everything that refers to
        it. With `declares`, a variable may be new. Raises `RecipeError` for an unknown name.
        """
        first, _, rest = key.partition(".")
        if rest and first == "engine":
            self.values.setdefault("engine", {})[rest] = value
            return ("engine", rest)
        if rest and first != "vars":
            return self._set_option(key, first, rest, value)
        name, variables = rest or first, self.values.get("vars") or {}
        if name == "repeats" and name not in variables:
            self.values[name] = value
            return (name,)
        (self.left_out.add if value is None else self.left_out.discard)(name)
        if name in self.axes:
            owner, other = ("for", "vars") if isinstance(value, list) else ("vars", "for")
            self.values.get(other, {}).pop(name, None)
        elif name in variables or (declares and name not in self.values["stages"]):
            owner = "vars"
        elif name in (self.values.get("stages") or {}):
            owner = "stages"
        else:
            names = [*variables, *self.axes]
            listed = f"; there are {', '.join(names)}" if names else ""
            near = closest(name, names)
            raise RecipeError(f"--set {key}: {self.name} has no variable {name!r}{near}{listed}")
        if owner != "stages" or value is not None:
            self.values.setdefault(owner, {})[name] = value
        return (owner, name)

    def _set_option(self, key: str, stage: str, option: str, value: Any) -> Path_:
        stages = self.values.get("stages")
        owners: dict[str, tuple[Path_, Any]] = {}
        for name, options in stages.items() if isinstance(stages, dict) else ():
            owners[name] = (("stages", name), stages)
            for arm in (options.get("arms") or {}) if isinstance(options, dict) else ():
                owners[arm] = (("stages", name, "arms", arm), options["arms"])
        if stage not in owners:
            names = ", ".join(owners) or "none"
            raise RecipeError(f"--set {key}: no stage {stage!r}; the stages are {names}")
        where, siblings = owners[stage]
        if isinstance(siblings[stage], str):
            raise RecipeError(f"--set {key}: {siblings[stage]} stands in the place of {stage}")
        if option == "arms" and not isinstance(value, dict):
            self.arms[stage] = value
        else:
            siblings[stage] = {**(siblings[stage] or {}), option: value}
        return (*where, option)


def read_source(path: Path) -> Source:
    """Read a recipe's file. Raises `RecipeError` if it is missing, invalid, or repeats a key."""
    try:
        text = read_text(path)
    except InputError as error:
        raise RecipeError(str(error)) from error
    return parse(text, path.name)


def parse(text: str, name: str) -> Source:
    """The source of a recipe that is called `name` in messages."""
    try:
        node = compose_yaml(text, name)
        values = load_yaml(text, name)
    except InputError as error:
        raise RecipeError(str(error)) from error
    lines: dict[Path_, int] = {}
    if not isinstance(node, yaml.MappingNode):
        raise RecipeError(f"{name}, line 1: a recipe is a mapping with the key `stages`")
    _number(node, (), lines, name)
    matrix = values.get("for")
    axes = frozenset(matrix) if isinstance(matrix, dict) else frozenset()
    return Source(name, text, values, lines, axes=axes)


def _number(node: yaml.Node, at: Path_, lines: dict[Path_, int], name: str) -> None:
    """Note the line of every value. PyYAML takes the last of two equal keys; we refuse them."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*at, key.value)
            line = key.start_mark.line + 1
            if inner in lines:
                raise RecipeError(
                    f"{name}, line {line}: {key.value} is given already in line {lines[inner]}"
                )
            lines[inner] = line
            _number(value, inner, lines, name)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            lines[(*at, number)] = value.start_mark.line + 1
            _number(value, (*at, number), lines, name)
