"""Convert options of a declaration to those of a command line."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import Annotated, Any

import typer

from ncclean.base.options import Parameter, union_members

# Options of every command, besides its own.
JSON = typer.Option("--json", help="Print the result as one JSON object on stdout.")
QUIET = typer.Option("--quiet", "-q", help="Print neither progress nor a summary.")
SET = typer.Option(
    "--set",
    metavar="NAME=VALUE",
    help="An option for experiments, such as `a_neg=20` for bayes; the documentation lists them. "
    "Repeatable.",
)


def typer_parameter(parameter: Parameter) -> inspect.Parameter:
    option = parameter.option
    default: Any = parameter.default
    if parameter.is_required:
        default = ... if option.typed_default is None else option.typed_default
    kind = typed_as(parameter)
    is_several = typing.get_origin(kind) is list
    if not option.shows_default or (is_several and default is not ...):
        default = None
    bounds: dict[str, Any] = {}
    if kind in (int, float):  # of a list, each value is checked by the declaration
        bounds = {"min": option.low, "max": option.high}
    if default is None:
        kind = kind | None
    if option.argument:
        info: Any = typer.Argument(metavar=option.metavar or None, help=option.help, **bounds)
        return keyword(parameter.name, Annotated[kind, info], default)
    info = typer.Option(
        *flags_of(parameter),
        metavar=option.metavar or None,
        help=option.help,
        hidden=not option.is_listed,
        **bounds,
    )
    return keyword(parameter.name, Annotated[kind, info], default)


def former_parameter(parameter: Parameter) -> inspect.Parameter:
    """Return the option under its former name, which the help omits."""
    option = dataclasses.replace(parameter.option, flags=(), is_listed=False)
    return typer_parameter(dataclasses.replace(parameter, name=option.former, option=option))


def flags_of(parameter: Parameter) -> list[str]:
    """The flags of an option, such as `--shift`, `--text/--no-text` or `--out -o`."""
    flags = ("-o",) if parameter.name == "out" else parameter.option.flags
    short = [flag for flag in flags if not flag.startswith("--")]
    if bool in union_members(parameter.takes) and parameter.default is not False:
        return [f"{parameter.flag}/--no-{parameter.flag.removeprefix('--')}", *short]
    return [parameter.flag, *short]


def typed_as(parameter: Parameter) -> Any:
    """The Python type that Typer parses an option as: text, a number, a switch, or a list."""
    if parameter.is_mapping:
        return list[str]
    if parameter.option.commas:  # also given several times: otherwise only the last one would count
        return list[str]
    members = [kind for kind in union_members(parameter.takes) if kind is not type(None)]
    kind = members[0]
    if typing.get_origin(kind) is list:
        inner = typing.get_args(kind)[0]
        return list[inner if inner in (int, float) else str]  # type: ignore[misc]
    if typing.get_origin(kind) is tuple:
        return tuple[typing.get_args(kind)]  # type: ignore[misc]
    return kind if kind in (int, float, bool) and len(members) == 1 else str


def parsed(parameter: Parameter, value: Any) -> Any:
    if parameter.option.commas and value is not None:
        return [name.strip() for text in value for name in text.split(",") if name.strip()]
    return value


def keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    missing = inspect.Parameter.empty if default is ... else default
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=missing, annotation=annotation)
