"""A command as a call from Python: options checked as in a recipe, a result that prints well."""

from __future__ import annotations

import dataclasses
import html
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ncclean.errors import InputError

from .recipe.commands import COMMANDS
from .recipe.model import stage_model
from .recipe.outcome import Outcome, Start
from .recipe.reports import NoReports


@dataclass(frozen=True, repr=False)
class Result:
    """What a call did.

    `figures` are the key ones as text, `values` all of them as `--json` prints them, `made` the
    paths, and `failures` what could not be done, with reasons.
    """

    command: str
    figures: Mapping[str, str]
    values: Mapping[str, Any]
    made: tuple[str, ...]
    failures: Mapping[str, str]

    @classmethod
    def of(cls, command: str, outcome: Outcome) -> Result:
        return cls(command, outcome.figures, outcome.result, tuple(outcome.made), outcome.failures)

    def __getitem__(self, name: str) -> Any:
        """One of the `values`."""
        return self.values[name]

    def __repr__(self) -> str:
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join([self.command, *(f"  {name:<{width}}  {value}" for name, value in rows)])

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self._rows()
        )
        return f"<table><caption>{html.escape(self.command)}</caption>{cells}</table>"

    def _rows(self) -> list[tuple[str, str]]:
        return [
            *self.figures.items(),
            *((f"failed: {name}", reason) for name, reason in self.failures.items()),
            *(("made", path) for path in self.made),
        ]


def call(command: str, given: Mapping[str, Any]) -> Result:
    """Run a command with these options; `overwrite` and `resume` mean what they mean there.

    Raises `InputError` for options that it does not take, and whatever the command raises.
    """
    if command.startswith("evaluate ") and given["out"] is None:
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, COMMANDS[command].out or "results")
            return dataclasses.replace(call(command, {**given, "out": out}), made=())
    known = COMMANDS[command]
    options = {name: value for name, value in given.items() if name in known.options}
    try:
        model = stage_model(command).model_validate({"command": command, **_given(known, options)})
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{command}: {first['loc'][0]}: {first['msg']}") from error
    values = model.model_dump(exclude_unset=True)
    del values["command"]
    request = known.build(values)
    if given.get("resume"):
        request = dataclasses.replace(request, resume=True)
    start = Start.AGAIN if given.get("overwrite") else Start.NEW
    return Result.of(command, known.run(request, start, NoReports()))


def _given(known: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not the default: what is left out is the request's business."""
    found = {}
    for name, value in options.items():
        default = known.options[name].default
        if value is None or value == default or (value == [] and not default):
            continue
        found[name] = value
    return found
