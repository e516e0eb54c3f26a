"""State options once, as annotated fields of frozen dataclasses.

The command line, recipes, the Python functions and the reference pages all read the annotation:

    class ScoreOptions(Options):
        block_size: Annotated[int, Option("Pairs that in-batch statistics are taken over.", low=1)]

A dataclass may hold others as groups (`Finetune.training: TrainOptions`); their annotated fields
are options of the whole. A field without an `Option` is not one.
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
import os
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from enum import Enum
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar

from ncclean.errors import InputError


class Reads(Enum):
    """The kind of input that an option names."""

    SHARDS = "shards"
    SOURCE = "source"  # shards or embeddings
    TABLE = "table"
    JOINED = "joined table"  # optionally with a name before it: `NAME=FILE`
    MODEL = "model"
    NAME_OR_FILE = "name or file"
    NAMED = "named file"  # `NAME=FILE`
    FUNCTION = "function"  # `MODULE:FUNCTION`
    PATH = "path"


# Extras needed by few are not installed with ncclean: the module that shows whether one is there.
EXTRAS = {"judge": "openai", "plots": "matplotlib", "review": "uvicorn"}


@dataclass(frozen=True)
class Option:
    """The facts about a field that all interfaces of a command read, besides type and default.

    `low` and `high` bound the value, `above` and `below` without the bound itself; of a list, each
    value. `inside` is its place in the folder of a recipe's stage: for `out` if omitted, for
    another option if it is `true`. `methods` are those of `finetune` that read it, all if empty;
    the help begins with them.
    """

    help: str
    _: dataclasses.KW_ONLY
    name: str = ""  # on all interfaces; the field's by default
    former: str = ""  # name, accepted for one more version
    flags: tuple[str, ...] = ()  # on the command line; a long one replaces the name's flag
    metavar: str = ""
    argument: bool = False  # without a flag on the command line
    typed_default: Any = None  # on the command line; Python and recipes need a value
    commas: bool = False  # a list is one text on the command line, separated by commas
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    endings: tuple[str, ...] = ()  # of a file's name
    local: bool = False  # a local folder, not a URL
    reads: Reads | None = None
    columns_of: tuple[str, ...] = ()  # it names columns of the tables that these options name
    sql_over: tuple[str, ...] = ()  # it is SQL over the columns of those tables
    inside: str | None = None
    is_idle: bool = False  # another value gives the same result
    in_recipes: bool = True
    names_code: bool = False  # code to run: a recipe, which may be anyone's, cannot name it alone
    is_listed: bool = True  # in `--help`; others are for experiments with a method
    shows_default: bool = True  # False if the help states it in words
    methods: tuple[str, ...] = ()
    source: str = ""  # `images` or `embeddings`, if it applies only to these
    extra: str = ""  # in pyproject.toml, required for the option: see `EXTRAS`


Place = tuple[str, ...]


@dataclass(frozen=True)
class Parameter:
    """An option of a dataclass: its name, the field that holds it, its type and its default."""

    name: str
    place: Place
    takes: Any
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """The long flag of an option, such as `--block-size`."""
        long = (flag for flag in self.option.flags if flag.startswith("--"))
        return next(long, "--" + self.name.replace("_", "-"))

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    @property
    def is_list(self) -> bool:
        """Whether the option takes several values."""
        return any(typing.get_origin(kind) is list for kind in union_members(self.takes))

    @property
    def is_mapping(self) -> bool:
        """Whether the option takes `NAME=VALUE` pairs."""
        return any(typing.get_origin(kind) is Mapping for kind in union_members(self.takes))

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that an option of type `Literal` can have; empty for other types."""
        members = [kind for kind in union_members(self.takes) if kind is not type(None)]
        inner = [typing.get_args(m)[0] if typing.get_origin(m) is list else m for m in members]
        if not all(typing.get_origin(kind) is typing.Literal for kind in inner):
            return ()
        return tuple(value for kind in inner for value in typing.get_args(kind))

    def check(self, value: Any) -> None:
        """Raise `OptionError` for a value that the option cannot have."""
        option = self.option
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is None:
                continue
            if self.choices and one not in self.choices:
                near = closest(one, self.choices) if isinstance(one, str) else ""
                raise OptionError(
                    self.name, f"{self.flag} takes {', '.join(self.choices)}, got {one!r}{near}"
                )
            if option.extra and one is not False and find_spec(EXTRAS[option.extra]) is None:
                needed, install = EXTRAS[option.extra], f"pip install 'ncclean[{option.extra}]'"
                raise OptionError(self.name, f"{self.flag} needs {needed}: {install}")
            if isinstance(one, bool):
                continue
            if option.endings and not str(one).lower().endswith(option.endings):
                endings = ", ".join(option.endings)
                raise OptionError(
                    self.name, f"{self.flag} takes a file ending in {endings}, got {one}"
                )
            if option.local and "://" in one:
                raise OptionError(self.name, f"{self.flag} takes a local folder, got {one}")
            if not isinstance(one, int | float):
                continue
            for bound, holds, words in (
                (option.low, operator.ge, "at least"),
                (option.high, operator.le, "at most"),
                (option.above, operator.gt, "above"),
                (option.below, operator.lt, "below"),
            ):
                if bound is not None and not holds(one, bound):
                    raise OptionError(
                        self.name, f"{self.flag} must be {words} {bound:g}, got {one:.15g}"
                    )


class OptionError(InputError):
    """A mistake about one option."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option

    def __reduce__(self) -> Any:
        return type(self), (self.option, str(self))


class Options:
    """Base of dataclasses with annotated fields: checks the values when one is made.

    `methods` are those of `finetune` that read the options of the class, all if empty;
    `in_recipes` tells whether recipes can have them.
    """

    methods: ClassVar[tuple[str, ...]] = ()
    in_recipes: ClassVar[bool] = True

    @classmethod
    def check_given(cls, values: Mapping[str, Any]) -> None:
        """Raise `OptionError` if the given options contradict one another."""

    def __post_init__(self) -> None:
        for parameter in parameters(type(self)).values():
            if len(parameter.place) == 1:  # groups check their own
                parameter.check(getattr(self, parameter.place[0]))


def closest(word: str, words: Iterable[str]) -> str:
    """` (did you mean ...?)` with the most similar word; empty if none is similar."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def parameters(kind: type) -> Mapping[str, Parameter]:
    """Return the options of a dataclass and its groups, by name, in field order."""
    return _parameters(kind)


@cache
def _parameters(kind: Any) -> Mapping[str, Parameter]:
    collected: dict[str, Parameter] = {}
    for parameter in _collected(kind, ()):
        if parameter.name in collected:
            raise TypeError(f"{kind.__name__} has two options called {parameter.name!r}")
        collected[parameter.name] = parameter
    return collected


def _collected(kind: Any, place: Place) -> typing.Iterator[Parameter]:
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, inner = hints[field.name], (*place, field.name)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _collected(hint, inner)
            continue
        extras = getattr(hint, "__metadata__", ())
        option = next((extra for extra in extras if isinstance(extra, Option)), None)
        if option is None:
            continue
        if methods := option.methods or getattr(kind, "methods", ()):
            named = f"{', '.join(methods)}: {option.help}"
            option = dataclasses.replace(option, methods=methods, help=named)
        if not getattr(kind, "in_recipes", True):
            option = dataclasses.replace(option, in_recipes=False)
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        name = option.name or field.name
        yield Parameter(name, inner, _as_list(hint.__origin__), default, option)


def usable_cores() -> int:
    """Number of cores of this machine, the default number of threads and processes."""
    return os.cpu_count() or 1


MAX_PIXELS = 89_478_485  # of an image; Pillow's own bound: a 256 MB RGB image
DecodeThreads = Annotated[
    int,
    Option(
        "Decoders: processes, and threads in these (default: one per core).",
        low=1,
        is_idle=True,
        shows_default=False,
    ),
]
CaptionKeys = Annotated[
    Sequence[str] | None,
    Option(
        "Extension, json field or column of the caption (default: `.txt`, `caption` and the "
        "like); `txt.lines` are the lines of a text. Each one given makes a row."
    ),
]
Seed = Annotated[int, Option("Random seed.", low=0)]


def value_of(options: object, parameter: Parameter) -> Any:
    """The value that a dataclass holds for one of its options."""
    for name in parameter.place:
        options = getattr(options, name)
    return options


def union_members(takes: Any) -> tuple[Any, ...]:
    """The members of a union type; any other type alone."""
    is_union = typing.get_origin(takes) in (typing.Union, types.UnionType)
    return typing.get_args(takes) if is_union else (takes,)


def _as_list(takes: Any) -> Any:
    """Read `Sequence[X]` as `list[X]`: a string is a sequence, too, and must not pass for one."""
    members = union_members(takes)
    if len(members) > 1:
        return typing.Union[tuple(map(_as_list, members))]  # noqa: UP007  made from values
    if typing.get_origin(takes) is Sequence:
        return list[typing.get_args(takes)[0]]  # type: ignore[misc]
    return takes


def check_unset(options: Options, names: Sequence[str], why: str) -> None:
    """Raise `InputError` if one of the named options differs from its default."""
    declared = parameters(type(options))
    for name in names:
        if value_of(options, declared[name]) != declared[name].default:
            raise InputError(f"--{name.replace('_', '-')} {why}")


def check_source(options: Options, source: str) -> None:
    """Raise `InputError` for a given option that is for another kind of source."""
    for name, parameter in parameters(type(options)).items():
        meant, value = parameter.option.source, value_of(options, parameter)
        if isinstance(value, list):  # as in recipes
            value = tuple(value)
        if meant not in ("", source) and value != parameter.default:
            why = f"is for {meant}, and these are {source}: leave it out"
            if meant == "embeddings":
                why += ", or score with --embeddings first, and then the embeddings"
            raise InputError(f"--{name.replace('_', '-')} {why}")


def total_memory() -> int:
    """Memory of this machine in bytes."""
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))
