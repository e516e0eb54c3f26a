"""`ncclean query`."""

from __future__ import annotations

import csv as csv_module
import json
import math
import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import command
from .options import JsonOption, QuietOption

if TYPE_CHECKING:
    import duckdb


@command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over the view `scores`.")],
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Score files, folders or globs.")
    ],
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    max_rows: Annotated[int, typer.Option(help="Rows of the table to show.", min=1)] = 100,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Ask DuckDB about score tables.

    The query sees the view `scores` and no other file.

    Example: `ncclean query "SELECT status, count(*) FROM scores GROUP BY 1" scores.parquet`
    """
    import duckdb

    from ncclean.errors import InputError
    from ncclean.storage.catalog import query as run

    relation = run(sql, paths)
    try:
        if json_:
            _print_json(relation)
        elif csv:
            writer = csv_module.writer(sys.stdout, lineterminator="\n")
            writer.writerow(relation.columns)
            writer.writerows(relation.fetchall())
        elif quiet:
            relation.fetchall()  # it runs all the same, and may fail
        else:
            width = shutil.get_terminal_size((120, 24)).columns
            relation.show(max_rows=max_rows, max_width=width)
    except duckdb.Error as error:  # only when it runs does DuckDB see the values
        raise InputError(f"the query failed: {error}") from error


def _print_json(relation: duckdb.DuckDBPyRelation) -> None:
    rows = [
        {name: _json_value(value) for name, value in zip(relation.columns, row, strict=True)}
        for row in relation.fetchall()
    ]
    typer.echo(json.dumps({"columns": relation.columns, "rows": rows}, default=str))


def _json_value(value: object) -> object:
    """NaN and infinity have no JSON."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
