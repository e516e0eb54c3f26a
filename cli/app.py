"""The `ncclean` command: parses options, shows progress and results; no logic of its own."""

from __future__ import annotations

import typer

from .errors import set_up_logging
from .options import DebugOption
from .query import query
from .score import score
from .synth import synth

app = typer.Typer(
    name="ncclean",
    help="Find the mismatched pairs of an image-text corpus, and repair what they did to a model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(score)
app.command()(query)
app.command()(synth)


def _version(value: bool) -> None:
    if value:
        from ncclean import __version__

        typer.echo(f"ncclean {__version__}")
        raise typer.Exit()


@app.callback()
def common(
    debug: DebugOption = False,
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    set_up_logging(debug)


def main() -> None:
    app()
