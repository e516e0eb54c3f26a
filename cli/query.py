"""`ncclean query`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from .errors import command
from .options import JsonOption


@command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over the view `scores`.")],
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Score files, folders or globs.")
    ],
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    max_rows: Annotated[int, typer.Option(help="Rows of the table to show.", min=1)] = 100,
    json_: JsonOption = False,
) -> None:
    """Ask DuckDB about score tables.

    The query sees the view `scores` and no other file.

    Example: `ncclean query "SELECT status, count(*) FROM scores GROUP BY 1" scores.parquet`
    """
    from ncclean.storage.catalog import query as run

    relation = run(sql, paths)
    if json_:
        rows = [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]
        typer.echo(json.dumps({"columns": relation.columns, "rows": rows}, default=str))
    elif csv:
        relation.fetch_arrow_table_to_csv(sys.stdout)
    else:
        relation.show(max_rows=max_rows, max_width=_terminal_width())


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size((120, 24)).columns
