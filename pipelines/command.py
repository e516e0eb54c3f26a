"""A command, stated once: a frozen dataclass whose annotated fields are its options.

The command line (`ncclean_cli.app`), recipes (`ncclean_pipelines.recipe`), the functions of the
package (`ncclean.score(...)`) and the reference pages are all made from these declarations.
Importing one loads neither torch nor DuckDB: `run` imports what it needs.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import html
import inspect
import json
import os
import typing
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from ncclean.errors import InputError
from ncclean.estimates import flattened
from ncclean.json_values import finite
from ncclean.options import OptionError, Options, Parameter, parameters, union_members, value_of

from .display import Shown
from .progress import SILENT, Progress

C = TypeVar("C", bound="Command")
S = TypeVar("S")
# More files of an input are recorded as a digest.
_LISTED_FILES = 100


@dataclass(frozen=True, repr=False)
class Result(Generic[S]):
    """The result of a command.

    `summary` is what the library returned, `values` all of it as `--json` prints it, `figures` the
    key ones as text, `made` the files and folders written, and `failures` what could not be done,
    with reasons. `shown` is what the command line prints.
    """

    command: str
    summary: S
    values: Mapping[str, Any]
    figures: Mapping[str, str] = field(default_factory=dict)
    made: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    shown: Iterable[Shown] = ()
    is_empty: bool = False  # nothing came of it, such as no pair with scores: exit code 1

    def __getitem__(self, name: str) -> Any:
        """One of the `values`."""
        return self.values[name]

    def to_json(self) -> Mapping[str, Any]:
        """The result's values with None in place of NaN and infinity."""
        cleaned: Mapping[str, Any] = finite(dict(self.values))
        return cleaned

    def __repr__(self) -> str:
        rows = list(self._rows())
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join([self.command, *(f"  {name:<{width}}  {value}" for name, value in rows)])

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self._rows()
        )
        return f"<table><caption>{html.escape(self.command)}</caption>{cells}</table>"

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield from self.figures.items()
        yield from ((f"failed: {name}", reason) for name, reason in self.failures.items())
        yield from (("made", path) for path in self.made)


@dataclass(frozen=True, kw_only=True)
class Command(Options):
    """Base of the declarations. The docstring is the help, with an example at its end."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for lists
    resume_hint: ClassVar[str | None] = None  # said when a person interrupts it
    is_stage: ClassVar[bool] = True  # whether a recipe can have it as a stage
    makes_model: ClassVar[bool] = False  # whether `out` is a model folder
    has_record: ClassVar[bool] = False  # whether `out` tells what made it, and is resumed
    takes_settings: ClassVar[bool] = False  # `--set NAME=VALUE`, for options that are not listed
    runs_in_ranks: ClassVar[bool] = False  # under torchrun, only the first process reports

    @abstractmethod
    def run(self, progress: Progress = SILENT) -> Result[Any]:
        """Run the command. Raises `InputError`, before anything is written, if it cannot be."""

    def result(
        self,
        summary: S,
        shown: Iterable[Shown] = (),
        *,
        figures: Mapping[str, str] | None = None,
        made: Iterable[str] = (),
        values: Mapping[str, Any] | None = None,
        failures: Mapping[str, str] | None = None,
        is_empty: bool = False,
    ) -> Result[S]:
        """Build the command's result; values and failures come from the summary by default."""
        reported: Any = summary
        if values is None:
            values = (
                reported.to_json()
                if hasattr(reported, "to_json")
                else dataclasses.asdict(reported, dict_factory=flattened)
            )
        if failures is None:
            failures = getattr(reported, "failed_shards", {})
        return Result(
            self.name, summary, values, figures or {}, tuple(made), failures, shown, is_empty
        )

    @classmethod
    def check_given(cls, values: Mapping[str, Any]) -> None:
        """Raise `OptionError` if the given options contradict one another."""

    def table_columns(self) -> frozenset[str] | None:
        """Columns of the table that the command writes; None if it writes none."""
        return None


def help_text(kind: type[Command]) -> str:
    """The command's docstring, unindented."""
    return inspect.cleandoc(kind.__doc__ or "")


def build(kind: type[C], values: Mapping[str, Any]) -> C:
    """Build a command from options by name; those left out keep their defaults.

    Values may be as a recipe has them: one where a list is taken, a number as text. Raises
    `OptionError` for an unknown option, a missing one and a value that it does not take.
    """
    declared = parameters(kind)
    check_known(kind, values, declared)
    accepted = {name: accept(declared[name], value) for name, value in values.items()}
    options = {
        name: value
        for name, value in accepted.items()
        if value is not None or declared[name].default is not None
    }
    for name, parameter in declared.items():
        if parameter.is_required and name not in options:
            raise OptionError(name, f"{kind.name} needs {name}")
    kind.check_given(options)
    command: C = _build(kind, (), {declared[name].place: value for name, value in options.items()})
    return command


def check_known(kind: type[Command], names: Iterable[str], options: Collection[str]) -> None:
    """Raise `OptionError` for the first name that is not an option of the command."""
    for name in names:
        if name not in options:
            raise OptionError(name, f"{kind.name} has no option {name!r}{closest(name, options)}")


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
        # Else true counts as 1: `keep_fraction: yes` would keep everything.
        given = _boolean_in(value)
        if given is not None:
            raise OptionError(parameter.name, f"{parameter.name} takes a number, got {given}")
    try:
        return TypeAdapter(parameter.takes).validate_python(value)
    except ValidationError as error:
        if parameter.choices:
            parameter.check(value)
        message = error.errors()[0]["msg"]
        raise OptionError(
            parameter.name, f"{parameter.name}: {message[0].lower()}{message[1:]}, got {value!r}"
        ) from None


def _can_be(takes: Any, kind: Any) -> bool:
    """Whether a type, or one inside it, is this one or any."""
    return takes in (kind, Any) or any(_can_be(inner, kind) for inner in typing.get_args(takes))


def _boolean_in(value: Any) -> bool | None:
    """The first true or false in a value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    inner = value if isinstance(value, list | tuple) else [value]
    return next((one for one in inner if isinstance(one, bool)), None)


def closest(word: str, words: Iterable[str]) -> str:
    """` (did you mean ...?)` with the most similar word; empty if none is similar."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def options_of(command: Command) -> dict[str, Any]:
    """All options of a command, by name."""
    return {name: value_of(command, p) for name, p in parameters(type(command)).items()}


def identity(command: Command) -> dict[str, Any]:
    """The options, inputs and version that a command's result depends on, as JSON.

    Options that change no result, and those of other methods, are left out.
    """
    import ncclean

    from .inputs import stamps

    options, inputs = {}, {}
    for name, parameter in parameters(type(command)).items():
        option, value = parameter.option, value_of(command, parameter)
        if name == "out" or option.is_idle or not option.in_recipes:
            continue
        if option.methods and getattr(command, "method", None) not in option.methods:
            continue
        options[name] = _plain(value)
        if option.reads is not None:
            files = [stamp for path in listed(value) for stamp in stamps(option.reads, path)]
            inputs[name] = {
                path: f"{size:,} bytes, version {version}" if version else "by its name"
                for path, size, version in files
            }
            if len(files) > _LISTED_FILES:
                digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
                inputs[name] = {f"of {name}": f"{len(files):,} files, {digest}"}
    return {"version": ncclean.__version__, "options": options, "inputs": inputs}


def listed(value: Any) -> list[Any]:
    """The value or values of an option as a list; the keys of a mapping."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def parse_settings(kind: type[Command], settings: Sequence[str]) -> dict[str, Any]:
    """Parse `--set NAME=VALUE`, values as YAML. Raises `InputError` for an unknown name."""
    import yaml

    from ncclean.text_files import load_yaml

    values = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, got {setting!r}")
        check_known(kind, [name], parameters(kind))
        try:
            values[name] = accept(parameters(kind)[name], load_yaml(text, name))
        except OptionError as error:
            raise InputError(f"--set {error}") from None
        except yaml.YAMLError:
            raise InputError(f"--set {name}: {text!r} is not YAML") from None
    return values


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


def _plain(value: Any) -> Any:
    """The value as JSON keeps it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
