"""Print results on stdout: tables and lines for people, one JSON object for programs.

Text from files, such as a caption, is printed with its control characters made visible.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from ncclean.base.visible_text import message, visible

if TYPE_CHECKING:
    from ncclean_pipelines.command import Result
    from rich.console import Console

    from ncclean.base.formats import Table

_LEAST_PROSE = 24
_END = re.compile(r"(?:\s|\x1b\[[0-9;]*m)+$")  # blanks and style codes between them
_STYLES = {"warning": "yellow", "error": "red", "aside": "dim", "strong": "bold"}


def print_json(result: Result[Any]) -> None:
    """Print a result as one JSON object."""
    typer.echo(json.dumps(result.to_json(), default=str))


def print_shown(result: Result[Any]) -> None:
    """Print the tables and lines of a result, then its failures."""
    from ncclean_pipelines.display import Note
    from rich.console import Console

    from ncclean.base.formats import Table

    console = Console(highlight=False)
    after_table = False
    for output in result.shown:
        if isinstance(output, Table):
            if after_table or output.title:
                console.print()
            _print_table(console, output)
        elif isinstance(output, Note):
            text = message(output.text)
            console.print(text, style=_STYLES[output.kind], soft_wrap=True, markup=False)
        else:
            typer.echo(visible(output))
        after_table = isinstance(output, Table)
    for name, reason in result.failures.items():
        text = message(f"failed: {name}: {reason}")
        console.print(text, style="red", soft_wrap=True, markup=False)


def _print_table(console: Console, shown: Table) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    table = dataclasses.replace(
        shown,
        title=visible(shown.title),
        heads=tuple(map(visible, shown.heads)),
        rows=tuple(tuple(map(visible, row)) for row in shown.rows),
    )
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
    separator = 2 if table.heads else 1
    widths = column_widths(heads, table, console.width, separator)
    for number, (head, width) in enumerate(zip(heads, widths, strict=True)):
        is_prose = table.last_left and number == len(heads) - 1
        is_left = is_prose or number < table.left
        justify: Any = "left" if is_left else "right"
        drawn.add_column(Text(head), justify=justify, width=width, overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    # Let the terminal break lines rather than cut figures off.
    terminal = console.width
    console.width = max(terminal, sum(widths) + separator * len(widths))
    with console.capture() as printed:
        console.print(drawn)
    console.width = terminal
    # Blanks at the end of a short line would become a separate line.
    for line in printed.get().splitlines():
        console.file.write(_END.sub(lambda end: "".join(end[0].split()), line) + "\n")


def column_widths(heads: Sequence[str], table: Table, available: int, separator: int) -> list[int]:
    """Return the width of each column: heads may break between words, cells only in prose."""
    from rich.cells import cell_len

    cells = [[line for row in table.rows for line in row[n].split("\n")] for n in range(len(heads))]
    widest = [max(map(cell_len, column), default=0) for column in cells]
    words = [max(map(cell_len, head.split()), default=0) for head in heads]
    widths = list(map(max, widest, words))
    if table.last_left or not table.heads:
        widths[-1] = max(words[-1], min(widths[-1], _LEAST_PROSE))
    natural = [max(cell_len(head), cell) for head, cell in zip(heads, widest, strict=True)]
    for _ in range(available - sum(widths) - separator * len(widths)):
        tightest = max(range(len(heads)), key=lambda n: natural[n] / max(widths[n], 1))
        widths[tightest] += widths[tightest] < natural[tightest]
    return widths
