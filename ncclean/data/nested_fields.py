"""Access json fields by path: `conversations[1].value`, or `caption.lines` for a text's lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LINES = "lines"
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d{1,9})\]")


def lines_of(text: str) -> list[str]:
    """Return the lines of a text that are not empty."""
    return [line for line in map(str.strip, text.splitlines()) if line]


def without_lines(path: str) -> str:
    """Return the path of the text whose lines a path such as `txt.lines` names."""
    return path.removesuffix(f".{_LINES}")


def field_at(fields: Mapping[str, Any], path: str) -> object:
    """Return the value of a json field by name, or by a path such as `a.b`; None if missing.

    Inner names match in any case: those of `--caption-key` are lower-case here. `lines` of a text
    are its lines.
    """
    if path in fields or not ("." in path or "[" in path):
        return fields.get(path)
    value: object = fields
    for name, number in _STEP.findall(path):
        if number:
            place = int(number)
            is_there = isinstance(value, list) and -len(value) <= place < len(value)
            value = value[place] if is_there else None  # type: ignore[index]
        elif isinstance(value, str) and name == _LINES:
            value = lines_of(value)
        elif isinstance(value, Mapping):
            value = next((inner for one, inner in value.items() if one.lower() == name), None)
        else:
            return None
    return value


def head_of(path: str) -> str:
    """Return the first field of a path such as `a.b`."""
    step = _STEP.match(path)
    return step[0] if step else path


def put_at(fields: dict[str, Any], path: str, value: object) -> None:
    """Replace the value of a json field, found by name or path as in `field_at`."""
    if path in fields:
        fields[path] = value
        return
    *steps, last = [int(number) if number else name for name, number in _STEP.findall(path)]
    place: Any = fields
    for step in steps:
        place = place[_name_in(place, step)]
    place[_name_in(place, last)] = value


def _name_in(place: Any, step: str | int) -> str | int:
    if isinstance(step, int):
        return step
    written: str = next(name for name in place if name.lower() == step)
    return written
