"""Build options from values of recipes, Python and the command line."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ncclean.base.options import (
    OptionError,
    Options,
    Parameter,
    closest,
    parameters,
    union_members,
    value_of,
)
from ncclean.errors import InputError

logger = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=Options)
Number = TypeVar("Number", int, float)


def build_options(kind: type[Kind], values: Mapping[str, Any], owner: str) -> Kind:
    """Build a dataclass of options by name; those left out keep their defaults.

    Values may be as in a recipe: one instead of a list, a number as text. Raises `OptionError`,
    which names the `owner`, for unknown and missing options and invalid values.
    """
    declared = parameters(kind)
    values = renamed(values, declared)
    check_known(values, declared, owner)
    accepted = {name: accept(declared[name], value) for name, value in values.items()}
    options = {
        name: value
        for name, value in accepted.items()
        if value is not None or declared[name].default is not None
    }
    for name, parameter in declared.items():
        if parameter.is_required and name not in options:
            raise OptionError(name, f"{owner} needs {name}")
    kind.check_given(options)
    built: Kind = _build(kind, (), {declared[name].place: value for name, value in options.items()})
    return built


def renamed(values: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the values by the options' current names, with a warning for each former one."""
    today = {one.option.former: name for name, one in declared.items() if one.option.former}
    for name in values.keys() & today.keys():
        new = declared[today[name]].flag
        logger.warning("--%s is called %s now; the next version knows this name only", name, new)
    return {today.get(name, name): value for name, value in values.items()}


def check_known(names: Iterable[str], options: Collection[str], owner: str) -> None:
    """Raise `OptionError` for the first name that is not one of the options."""
    for name in names:
        if name not in options:
            raise OptionError(name, f"{owner} has no option {name!r}{closest(name, options)}")


def accept(parameter: Parameter, value: Any) -> Any:
    """Convert a value to the type of an option. Raises `OptionError` if that fails."""
    from pydantic import TypeAdapter, ValidationError

    if value is None and not parameter.is_required:
        return None if type(None) in union_members(parameter.takes) else parameter.default
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, list | tuple):
        value = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in value]
    if (parameter.is_list or parameter.is_mapping) and isinstance(value, str | int | float):
        value = [value]
    is_number = _can_be(parameter.takes, int) or _can_be(parameter.takes, float)
    if is_number and not _can_be(parameter.takes, bool):
        # Otherwise true would count as 1: `keep_fraction: yes` would keep everything.
        text = _boolean_in(value)
        if text is not None:
            raise OptionError(parameter.name, f"{parameter.name} takes a number, got {text}")
    try:
        return TypeAdapter(parameter.takes).validate_python(value)
    except ValidationError as error:
        if parameter.choices:
            parameter.check(value)
        message = error.errors()[0]["msg"]
        raise OptionError(
            parameter.name, f"{parameter.name}: {message[0].lower()}{message[1:]}, got {value!r}"
        ) from None


def parse_settings(
    declared: Mapping[str, Parameter], settings: Sequence[str], owner: str
) -> dict[str, Any]:
    """Parse `--set NAME=VALUE`, values as YAML. Raises `InputError` for an unknown name."""
    if not settings:
        return {}
    from ncclean.base.text_files import load_yaml

    values = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, got {setting!r}")
        check_known([name], declared, owner)
        value = load_yaml(text, f"--set {name}")
        try:
            values[name] = accept(declared[name], value)
        except OptionError as error:
            raise InputError(f"--set {error}") from None
    return values


def numbers_by_name(
    sentence: str,
    given: Mapping[str, Number] | Sequence[str],
    kind: type[Number],
    *,
    least: float = -math.inf,
) -> dict[str, Number]:
    """Parse numbers by name from `NAME=NUMBER`.

    Raises `InputError`, beginning with the sentence, for invalid texts and for numbers below
    `least`.
    """
    if isinstance(given, Mapping):
        return dict(given)
    numbers = {}
    for text in given:
        name, _, value = text.rpartition("=")
        try:
            number = kind(value)
        except ValueError:
            number = None
        if number is None or not number >= least or not name.strip():  # NaN is neither
            raise InputError(f"{sentence}, got {text!r}")
        numbers[name.strip()] = number
    return numbers


def values_by_name(options: Options) -> dict[str, Any]:
    """The values of all options, those of groups too."""
    return {name: value_of(options, p) for name, p in parameters(type(options)).items()}


def as_list(value: Any) -> list[Any]:
    """The value or values of an option as a list; the keys of a mapping."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def _can_be(takes: Any, kind: Any) -> bool:
    """Check whether a type, or one inside it, is this one or any."""
    return takes in (kind, Any) or any(_can_be(inner, kind) for inner in typing.get_args(takes))


def _boolean_in(value: Any) -> bool | None:
    """The first true or false in a value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    inner = value if isinstance(value, list | tuple) else [value]
    return next((one for one in inner if isinstance(one, bool)), None)


def _build(
    kind: Any, place: tuple[str, ...], values_by_place: Mapping[tuple[str, ...], Any]
) -> Any:
    values = {}
    for one in dataclasses.fields(kind):
        inner = (*place, one.name)
        if inner in values_by_place:
            values[one.name] = values_by_place[inner]
        elif any(
            other[: len(inner)] == inner for other in values_by_place
        ):  # a group with options in it
            factory: Any = one.default_factory
            values[one.name] = _build(type(factory()), inner, values_by_place)
    return kind(**values)
