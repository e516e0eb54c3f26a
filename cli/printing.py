"""Results on stdout: tables and lines for people, one JSON object for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ncclean_pipelines.command import Result
    from ncclean_pipelines.display import Table
    from rich.console import Console

_STYLES = {"warning": "yellow", "error": "red", "aside": "dim", "strong": "bold"}


def print_json(result: Result[Any]) -> None:
    """All values as one JSON object."""
    typer.echo(json.dumps(result.to_json(), default=str))


def print_shown(result: Result[Any]) -> None:
    """What the result shows, then what failed."""
    from ncclean_pipelines.display import Note, Table
    from rich.console import Console

    console = Console(highlight=False)
    after_table = False
    for shown in result.shown:
        if isinstance(shown, Table):
            if after_table or shown.title:
                console.print()
            _print_table(console, shown)
        elif isinstance(shown, Note):
            console.print(shown.text, style=_STYLES[shown.kind], soft_wrap=True, markup=False)
        else:
            typer.echo(shown)
        after_table = isinstance(shown, Table)
    for name, reason in result.failures.items():
        console.print(f"failed: {name}: {reason}", style="red", soft_wrap=True, markup=False)


def _print_table(console: Console, table: Table) -> None:
    """As wide as it takes: lines that the terminal breaks, rather than figures cut off."""
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        title=Text(table.title, style="bold") if table.title else None,
        title_justify="left",
        box=SIMPLE_HEAD if table.heads else None,
        show_header=bool(table.heads),
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    heads = table.heads or ("",) * len(table.rows[0])
    for number, head in enumerate(heads):
        is_prose = table.last_left and number == len(heads) - 1
        widest = max(cell_len(row[number]) for row in (heads, *table.rows))
        drawn.add_column(
            Text(head),
            justify="left" if is_prose or number < table.left else "right",
            no_wrap=not is_prose,
            min_width=None if is_prose else widest,
            overflow="fold",
        )
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    least = console.measure(drawn, options=console.options.update(width=1000)).minimum
    previous = console.width
    console.width = max(previous, least)
    with console.capture() as printed:
        console.print(drawn)
    console.width = previous
    # Blanks at the end of short lines would be lines of their own on a narrow terminal.
    console.file.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))
