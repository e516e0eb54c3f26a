"""The options of a stage, derived from the request that its command makes.

A request is a dataclass that may hold others (`ScoreRequest.options.block_size`). A recipe names
each option once and flat (`block_size: 1024`), as the command line does. Deriving them here means
that a field that a request gains is an option of the recipe at once.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

Place = tuple[str, ...]


@dataclass(frozen=True)
class Option:
    """One option: what it takes, its default (`MISSING` if it must be given), and the fields of
    the request that it sets."""

    name: str
    takes: Any
    default: Any
    places: tuple[Place, ...] = ()

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    @property
    def is_list(self) -> bool:
        """Whether several values may be given."""
        return any(typing.get_origin(kind) is list for kind in (self.takes, *_parts(self.takes)))


def flatten(
    request: type, names: Mapping[str, str] | None = None, hidden: Sequence[str] = ()
) -> dict[str, Option]:
    """The fields of a request and of the dataclasses in it as options, by name.

    `names` renames fields by their dotted place, as the command does; `hidden` ones are left out.
    Fields of one name, type and default are one option that sets them all (`seed`); one that
    differs is called after what it belongs to (`bayes_mode`).
    """
    found: dict[str, Option] = {}
    for place, takes, default in _leaves(request):
        dotted = ".".join(place)
        if dotted in hidden:
            continue
        name = (names or {}).get(dotted, place[-1])
        option = Option(name, _listed(takes), default, (place,))
        before = found.get(name)
        if before is not None and (before.takes, before.default) == (option.takes, default):
            option = dataclasses.replace(before, places=(*before.places, place))
        elif before is not None:
            option = dataclasses.replace(option, name=f"{place[-2]}_{name}")
        found[option.name] = option
    return found


def build(request: type, options: Mapping[str, Option], values: Mapping[str, Any]) -> Any:
    """The request with these values; what is not given keeps its default.

    Raises what the request raises for values that it refuses.
    """
    given: dict[Place, Any] = {}
    for name, value in values.items():
        for place in options[name].places:
            given[place] = value
    return _build(request, (), given)


def _build(kind: type, place: Place, given: Mapping[Place, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        inner = (*place, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            if any(each[: len(inner)] == inner for each in given):
                values[field.name] = _build(hints[field.name], inner, given)
        elif inner in given:
            values[field.name] = given[inner]
    return kind(**values)


def _leaves(kind: type, place: Place = ()) -> list[tuple[Place, Any, Any]]:
    hints = typing.get_type_hints(kind)
    found = []
    for field in dataclasses.fields(kind):
        inner = (*place, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            found += _leaves(hints[field.name], inner)
            continue
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        found.append((inner, hints[field.name], default))
    return found


def _listed(takes: Any) -> Any:
    """`Sequence[X]` as `list[X]`: a string is a sequence too, and must not pass for one."""
    if typing.get_origin(takes) is Sequence:
        return list[typing.get_args(takes)[0]]  # type: ignore[misc]
    return takes


def _parts(takes: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(takes) in (typing.Union, types.UnionType)
    return typing.get_args(takes) if is_union else ()
