"""`${name}` in the values of a recipe: a variable, an earlier stage, or an option of one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
RUN = "run"  # the folder of the run


def names_in(value: Any) -> list[str]:
    """What is referred to anywhere in a value, in order."""
    if isinstance(value, str):
        return [name.strip() for name in _REFERENCE.findall(value)]
    if isinstance(value, dict):
        return [name for inner in value.values() for name in names_in(inner)]
    if isinstance(value, list):
        return [name for inner in value for name in names_in(inner)]
    return []


def fill(value: Any, meaning: Callable[[str], Any]) -> Any:
    """The value with every reference replaced by its meaning.

    A string that is nothing but a reference becomes what it stands for, number or list; inside a
    longer string it becomes text.
    """
    if isinstance(value, dict):
        return {key: fill(inner, meaning) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, meaning) for inner in value]
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole is not None:
        return meaning(whole[1].strip())
    return _REFERENCE.sub(lambda match: str(meaning(match[1].strip())), value)


def written(name: str) -> str:
    """The reference as it stands in a recipe."""
    return "${" + name + "}"
