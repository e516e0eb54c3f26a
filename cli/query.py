"""`ncclean query`."""

from __future__ import annotations

import csv as csv_module
import json
import math
import shutil
import sys
from typing import Annotated

import typer

from .errors import command
from .options import JsonOption


@command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over the view `scores`.")],
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Score files, folders or globs.")
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
        rows = [
            {name: _json_value(value) for name, value in zip(relation.columns, row, strict=True)}
            for row in relation.fetchall()
        ]
        typer.echo(json.dumps({"columns": relation.columns, "rows": rows}, default=str))
    elif csv:
        writer = csv_module.writer(sys.stdout)
        writer.writerow(relation.columns)
        writer.writerows(relation.fetchall())
    else:
        relation.show(max_rows=max_rows, max_width=shutil.get_terminal_size((120, 24)).columns)


def _json_value(value: object) -> object:
    """NaN and infinity have no JSON."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
