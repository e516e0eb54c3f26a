"""Fields of a json by path: `conversations[1].value`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d{1,9})\]")


def field_at(fields: Mapping[str, Any], path: str) -> object:
    """The value of a json field by name, or by a path such as `a.b`; None if it is missing.

    Names inside are found in any case: those of `--caption-key` are lower-case here.
    """
    if path in fields or not ("." in path or "[" in path):
        return fields.get(path)
    value: object = fields
    for name, number in _STEP.findall(path):
        if number:
            place = int(number)
            is_there = isinstance(value, list) and -len(value) <= place < len(value)
            value = value[place] if is_there else None  # type: ignore[index]
        elif isinstance(value, Mapping):
            value = next((inner for one, inner in value.items() if one.lower() == name), None)
        else:
            return None
    return value


def head_of(path: str) -> str:
    """The first field of a path such as `a.b`."""
    step = _STEP.match(path)
    return step[0] if step else path
