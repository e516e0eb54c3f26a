"""Options by their recipe names on the command line: `--set a_neg=20`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from ncclean.errors import InputError

from .commands import COMMANDS
from .model import closest
from .options import Place


def with_settings(command: str, request: Any, settings: Sequence[str]) -> Any:
    """The request of `command` with options set from `NAME=VALUE`, as a recipe would have them.

    Values are YAML. Raises `InputError` for an unknown name, or a value that it does not take.
    """
    options = COMMANDS[command].options
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, got {setting!r}")
        if name not in options:
            hint = closest(name, list(options))
            raise InputError(f"--set: {command} has no option {name!r}{hint}")
        try:
            value = TypeAdapter(options[name].takes).validate_python(yaml.safe_load(text))
        except (ValidationError, yaml.YAMLError) as error:
            told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "not YAML"
            raise InputError(f"--set {name}: {told[0].lower()}{told[1:]}, got {text!r}") from None
        for place in options[name].places:
            request = _replaced(request, place, value)
    return request


def _replaced(holder: Any, place: Place, value: Any) -> Any:
    inner = value if len(place) == 1 else _replaced(getattr(holder, place[0]), place[1:], value)
    return dataclasses.replace(holder, **{place[0]: inner})
