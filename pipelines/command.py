"""A command, stated once: a frozen dataclass whose annotated fields are its options.

The command line (`ncclean_cli.app`), recipes (`ncclean_pipelines.recipe`), the functions of the
package (`ncclean.score(...)`) and the reference pages are all made from these declarations.
Importing one loads neither torch nor DuckDB: `run` imports what it needs.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from ncclean.base.estimates import flattened
from ncclean.base.json_values import finite
from ncclean.base.option_values import build_options
from ncclean.base.options import Options
from ncclean.errors import InputError

from .display import Note, Shown
from .progress import SILENT, Progress

C = TypeVar("C", bound="Command")
R = TypeVar("R")
S = TypeVar("S")


@dataclass(frozen=True, repr=False)
class Result(Generic[S]):
    """The result of a command, for the command line and for Python.

    `summary` is the library's result, `values` all of it as `--json` prints it, `figures` the key
    ones as text, `made` the files and folders written, and `failures` what failed, with reasons.
    `shown` is what the command line prints.
    """

    command: str
    summary: S
    values: Mapping[str, Any]
    figures: Mapping[str, str] = field(default_factory=dict)
    made: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    shown: Iterable[Shown] = ()
    is_empty: bool = False  # no result, such as no pair with scores: exit code 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown", tuple(self.shown))  # for a second look at it

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
        yield from (("note", one.text) for one in self.shown if isinstance(one, Note))


@dataclass(frozen=True, kw_only=True)
class Command(Options):
    """The base of all commands: the fields of a subclass are its options.

    Its docstring is the help, with an example at its end.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for lists
    resume_hint: ClassVar[str | None] = None  # printed when a person interrupts it
    is_stage: ClassVar[bool] = True  # whether a recipe can have it as a stage
    makes_model: ClassVar[bool] = False  # whether `out` is a model folder
    has_record: ClassVar[bool] = False  # whether `out` tells what made it, and is resumed
    takes_settings: ClassVar[bool] = False  # `--set NAME=VALUE`, for options that are not listed
    runs_in_ranks: ClassVar[bool] = False  # under torchrun, only the first process reports

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self, "price_per_hour", None) is not None and not getattr(self, "dry_run", True):
            raise InputError("--price-per-hour needs --dry-run, which estimates the hours")

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

    def planned(
        self,
        plan: S,
        shown: Iterable[Shown],
        worker_hours: float,
        values: Mapping[str, Any] | None = None,
    ) -> Result[S]:
        """Return the result of `--dry-run`, optionally with the cost of all workers' hours."""
        result = self.result(plan, shown, values=values)
        price = getattr(self, "price_per_hour", None)
        if price is None:
            return result
        cost = price * worker_hours
        line = f"about {cost:,.2f} at {price:,.2f} for an hour of a worker"
        values = {**result.values, "cost": cost}
        return dataclasses.replace(result, values=values, shown=[*result.shown, line])

    def table_columns(self) -> frozenset[str] | None:
        """Return the columns of the table that the command writes; None if it writes none."""
        return None


def lists_tables_once(run: Callable[[C, Progress], R]) -> Callable[..., R]:
    """Decorate `run` of a command that reads tables: list each table in a store only once."""

    @functools.wraps(run)
    def listing_once(self: C, progress: Progress = SILENT) -> R:
        from ncclean.storage.tables import listed_once

        with listed_once():
            return run(self, progress)

    return listing_once


def help_text(kind: type[Command]) -> str:
    """Return the docstring of a command, unindented."""
    return inspect.cleandoc(kind.__doc__ or "")


def build(kind: type[C], values: Mapping[str, Any]) -> C:
    """Build a command from options by name; see `ncclean.base.option_values.build_options`."""
    return build_options(kind, values, kind.name)
