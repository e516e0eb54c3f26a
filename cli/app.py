"""The `ncclean` command: each declaration of `ncclean_pipelines` as a Typer command."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from shutil import get_terminal_size
from typing import Annotated, Any

import typer
from ncclean_pipelines.command import Command, Result, build, help_text
from ncclean_pipelines.progress import SILENT
from ncclean_pipelines.registry import COMMANDS, PURPOSES
from typer.core import TyperCommand, TyperGroup

from ncclean.base.option_values import parse_settings
from ncclean.base.options import parameters

from .command_help import command_help
from .errors import SOME_FAILED, one_sentence, set_up_logging
from .parameters import JSON, QUIET, SET, former_parameter, keyword, parsed, typer_parameter
from .printing import print_json, print_shown

_WIDTH = 100


class ByPurpose(TyperGroup):
    """The commands, listed by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each purpose."""
        for purpose, names in PURPOSES.items():
            rows = [(name, self.commands[name].get_short_help_str(_WIDTH)) for name in names]
            with formatter.section(purpose):
                formatter.write_dl(rows)


app = typer.Typer(
    name="ncclean",
    cls=ByPurpose,
    help="Find the mismatched pairs of an image-text corpus, and repair what they did to a model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)
_GROUPS = {
    "evaluate": "Measure how good scores and models are.\n\n"
    "Example: `ncclean evaluate noise scores.parquet`"
}


def typer_command(kind: type[Command]) -> Callable[..., None]:
    """Return the function that Typer makes a command of, with the declaration's signature."""
    declared = parameters(kind)
    assumed = {
        name: parameter.option.typed_default
        for name, parameter in declared.items()
        if parameter.option.typed_default is not None
    }

    @one_sentence(kind.resume_hint)
    def run(context: typer.Context, json_: bool, quiet: bool, **values: Any) -> None:
        settings = values.pop("set_", None) if kind.takes_settings else None
        # Untyped options are left to the declaration, whose defaults need not be Typer's.
        typed = {
            name: parsed(declared[name], value) if name in declared else value
            for name, value in values.items()
            if is_typed(context, name)
        }
        set_values = parse_settings(declared, settings or [], kind.name)
        command = build(kind, {**assumed, **typed, **set_values})
        is_first = not kind.runs_in_ranks or os.environ.get("RANK", "0") == "0"
        _run(command, as_json=json_, is_quiet=quiet, is_first=is_first)

    fields = [typer_parameter(parameter) for parameter in declared.values()]
    fields += [former_parameter(one) for one in declared.values() if one.option.former]
    extra = [keyword("set_", Annotated[list[str] | None, SET], None)] if kind.takes_settings else []
    common = [
        keyword("json_", Annotated[bool, JSON], False),
        keyword("quiet", Annotated[bool, QUIET], False),
    ]
    context = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    signature = inspect.Signature([context, *fields, *extra, *common])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    run.__doc__ = help_text(kind)
    run.__name__ = kind.name.rsplit(" ", 1)[-1].replace("-", "_")
    return run


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option was on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _run(command: Command, *, as_json: bool, is_quiet: bool, is_first: bool) -> None:
    from .progress import shown_progress

    if is_quiet or not is_first:
        result: Result[Any] = command.run(SILENT)
    else:
        with shown_progress() as progress:
            result = command.run(progress)
    if not is_first:
        return
    if as_json:
        print_json(result)
    elif not is_quiet:
        print_shown(result)
    if result.failures or result.is_empty:
        raise typer.Exit(SOME_FAILED)


def _add_commands(kinds: Sequence[type[Command]]) -> None:
    groups: dict[str, typer.Typer] = {}
    for kind in kinds:
        group, _, inner = kind.name.rpartition(" ")
        owner = app
        if group and group not in groups:
            groups[group] = typer.Typer(
                name=group, help=_GROUPS[group], no_args_is_help=True, rich_markup_mode=None
            )
            app.add_typer(groups[group])
        if group:
            owner = groups[group]
        owner.command(inner, short_help=kind.summary, cls=_with_help(kind))(typer_command(kind))


def _with_help(kind: type[Command]) -> type[TyperCommand]:
    """Make a command explain itself as docs/cli.md does, whatever the version of Typer."""

    class Explained(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            formatter.write(command_help(kind, min(_WIDTH, get_terminal_size().columns)) + "\n")

    return Explained


_add_commands(list(COMMANDS.values()))


def _version(value: bool) -> None:
    if value:
        from ncclean import __version__

        typer.echo(f"ncclean {__version__}")
        raise typer.Exit()


DEBUG = typer.Option("--debug", help="Show tracebacks and debug messages.")
VERSION = typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)


@app.callback()
def common(
    debug: Annotated[bool, DEBUG] = False, version: Annotated[bool, VERSION] = False
) -> None:
    set_up_logging(debug)


def main() -> None:
    # Decoding threads and the model share the cores. OpenMP's workers spin while waiting for one
    # another, and on a busy machine take most of the time from those they wait for (measured: 3 to
    # 12 times slower). torch reads this when loaded, hence here.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    arguments = sys.argv[1:]
    if "--debug" in arguments:  # wherever it was typed
        arguments.remove("--debug")
        sys.argv[1:] = ["--debug", *arguments]
    app()
