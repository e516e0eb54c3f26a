"""A YAML file as plain values that remember the line they were written in."""

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

    `lines` are counted from 1, by the keys that lead to a value; `changed` are those that were
    given beside it, with the option that a person knows: `--set model.epochs`, or `--model`.
    `cells` are filled by `matrix.expand`: of a repeated stage, its name in the file and its values.
    """

    name: str
    text: str
    values: dict[str, Any]
    lines: dict[Path_, int]
    changed: dict[Path_, str] = field(default_factory=dict)
    cells: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    def error(self, where: Sequence[str | int], sentence: str) -> RecipeError:
        """Build the error for a value; it begins with the line of that, or of what holds it."""
        at = tuple(where)
        while at and at not in self.lines and at not in self.changed:
            at = at[:-1]
        if at in self.changed:
            return RecipeError(f"{self.changed[at]}: {sentence}")
        return RecipeError(f"{self.name}, line {self.lines.get(at, 1)}: {sentence}")

    def change(self, assignment: str, given_as: str | None = None) -> None:
        """Apply one `--set KEY=VALUE`; the value is YAML.

        `stage.option=2` sets an option of a stage, `name=/data` one of `vars`. `given_as` is what
        errors call it, `--set KEY` if left out. Raises `RecipeError` for a stage or a variable that
        the recipe does not have, and `InputError` for what is not YAML.
        """
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set takes KEY=VALUE, got {assignment!r}")
        value = load_yaml(text, f"--set {key}")
        first, _, rest = key.partition(".")
        stages, variables = self.values.get("stages"), self.values.get("vars")
        matrix = self.values.get("for")
        is_repeats = key == "repeats" and key not in (variables or {})
        if is_repeats or (isinstance(matrix, dict) and key in matrix):
            where: Path_ = ("for", key)
            if isinstance(matrix, dict) and key in matrix:
                matrix[key] = value
            else:
                self.values[key], where = value, (key,)
            self.changed[where] = given_as or f"--set {key}"
            return
        if not rest or first == "vars":
            first, rest = "vars", rest or first
            if not isinstance(variables, dict) or rest not in variables:
                defined = list(variables) if isinstance(variables, dict) else []
                names = f"; there are {', '.join(defined)}" if defined else ""
                near = closest(rest, defined)
                raise RecipeError(f"--set {key}: {self.name} has no variable {rest!r}{near}{names}")
            variables[rest] = value
            self.changed["vars", rest] = given_as or f"--set {rest}"
        elif first == "engine":
            self.values.setdefault("engine", {})[rest] = value
            self.changed["engine", rest] = given_as or f"--set engine.{rest}"
        else:
            if not isinstance(stages, dict) or first not in stages:
                names = ", ".join(stages) if isinstance(stages, dict) else "none"
                raise RecipeError(f"--set {key}: no stage {first!r}; the stages are {names}")
            if stages[first] is None:
                stages[first] = {}
            stages[first][rest] = value
            self.changed["stages", first, rest] = given_as or f"--set {first}.{rest}"


def read_source(path: Path) -> Source:
    """Raises `RecipeError` if the file is not there, is not YAML, or repeats a key."""
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
    return Source(name, text, values, lines)


def _number(node: yaml.Node, at: Path_, lines: dict[Path_, int], name: str) -> None:
    """Note the line of every value. PyYAML takes the last of two equal keys, we neither."""
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
