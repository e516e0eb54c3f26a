"""Resolve `${name}` in the values of a recipe: a variable, an earlier stage, or its option."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ncclean.base.text_files import WrittenFloat
from ncclean.errors import InputError

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
RUN = "run"  # the folder of the run
_LARGEST = 1 << 20


def names_in(value: Any) -> list[str]:
    """The names that a value refers to, in order."""
    if isinstance(value, str):
        return [name.strip() for name in _REFERENCE.findall(value)]
    if isinstance(value, dict):
        return [name for inner in value.values() for name in names_in(inner)]
    if isinstance(value, list):
        return [name for inner in value for name in names_in(inner)]
    return []


def fill(value: Any, meaning: Callable[[str], Any]) -> Any:
    """Replace every reference in a value by its meaning.

    A string that is only a reference becomes its meaning, number or list; inside a longer string it
    becomes text. There, raises `InputError` for true, false and null: YAML reads `no` and `on` as
    such, not as text.
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
    return _text(value, meaning)


def check_size(value: Any) -> None:
    """Raise `InputError` if variables of variables have made a value absurdly large."""
    waiting, count = [value], 0
    while waiting:
        inner = waiting.pop()
        count += 1 + (len(inner) if isinstance(inner, str) else 0)
        if count > _LARGEST:
            raise InputError(f"with its references filled in it has more than {_LARGEST:,} letters")
        waiting += inner.values() if isinstance(inner, dict) else []
        waiting += inner if isinstance(inner, list) else []


def _text(value: str, meaning: Callable[[str], Any]) -> str:
    """A text with its references filled in, as far as it is not too large."""
    pieces, end, size = [], 0, 0
    for match in _REFERENCE.finditer(value):
        meant = meaning(match[1].strip())
        if meant is None or isinstance(meant, bool):
            raise InputError(
                f"{match[0]} is {meant} in YAML, not a text that can be part of {value!r}: give it "
                "a value in quotes"
            )
        text = meant.written if isinstance(meant, WrittenFloat) else str(meant)
        pieces += [value[end : match.start()], text]
        end, size = match.end(), size + len(pieces[-1])
        if size > _LARGEST:
            break
    return "".join([*pieces, value[end:]])


def written(name: str) -> str:
    """Return the reference as written in a recipe."""
    return "${" + name + "}"
