"""`ncclean query`: run one SELECT over score tables."""

from __future__ import annotations

import contextlib
import csv as csv_module
import html
import io
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ncclean.base.formats import counted
from ncclean.base.json_values import json_text
from ncclean.base.options import Option

from .command import Command, Result, lists_tables_once
from .display import Shown
from .progress import SILENT, Progress
from .shared_options import Join, MemoryLimit, Scores

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_PRINTED_ROWS = 20
_CELL = 200  # characters of a value in a notebook
_ZONED = "TIMESTAMP WITH TIME ZONE"


@dataclass(frozen=True, kw_only=True)
class Query(Command):
    """Query score tables with SQL, in DuckDB.

    The query sees the view `scores`, with the columns of --join, and no other file.

    Example: `ncclean query "SELECT status, count(*) FROM scores GROUP BY 1" scores.parquet`
    """

    name = "query"
    summary = "Query score tables with SQL."
    is_stage = False

    sql: Annotated[str, Option("One SELECT over the view `scores`.", argument=True, metavar="SQL")]
    scores: Scores
    join: Join = ()
    csv: Annotated[bool, Option("Print all rows as CSV.")] = False
    max_rows: Annotated[int, Option("Rows to print as a table.", low=1)] = 100
    memory_limit: MemoryLimit = None

    @lists_tables_once
    def run(self, progress: Progress = SILENT) -> QueryResult:
        """Run the SQL query. Raises `InputError` if it is not one SELECT, or fails."""
        from ncclean.storage.joined import query

        relation = query(self.sql, self.scores, self.memory_limit, joins=self.join)
        text = _csv_lines(relation) if self.csv else _table(relation, self.max_rows)
        return QueryResult(self.name, relation, _Rows(relation), shown=text)


class QueryResult(Result["duckdb.DuckDBPyRelation"]):
    """The rows of a query, which print as a table, with `to_arrow` and `to_pandas`."""

    def to_arrow(self) -> pa.Table:
        return self.summary.fetch_arrow_table()

    def to_pandas(self) -> Any:  # a `pandas.DataFrame`
        return self.summary.df()

    def __repr__(self) -> str:
        return "\n".join(map(str, _table(self.summary, _PRINTED_ROWS)))

    def _repr_html_(self) -> str:
        """The first rows for a notebook; `to_pandas` has all of them."""
        names, count = self.summary.columns, len(self.summary)
        rows = _python_rows(self.summary.limit(_PRINTED_ROWS))
        lines = [_html_row("th", names), *(_html_row("td", row) for row in rows)]
        caption = f"{counted(count, 'row')}" + (
            f", the first {_PRINTED_ROWS} of them" if count > _PRINTED_ROWS else ""
        )
        return f"<table><caption>{caption}</caption>{''.join(lines)}</table>"


class _Rows(Mapping[str, Any]):
    """`columns` and `rows`; rows become Python values only on request."""

    def __init__(self, relation: duckdb.DuckDBPyRelation) -> None:
        self._relation = relation

    def __getitem__(self, name: str) -> Any:
        names = self._relation.columns
        if name == "rows":
            return [dict(zip(names, row, strict=True)) for row in _python_rows(self._relation)]
        return {"columns": names}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("columns", "rows"))

    def __len__(self) -> int:
        return 2


def _python_rows(relation: duckdb.DuckDBPyRelation) -> list[tuple[Any, ...]]:
    """Return all rows, with zoned times as text: for their values DuckDB needs pytz."""
    columns = [
        f"#{number}::{str(kind).replace(_ZONED, 'VARCHAR')}"
        if _ZONED in str(kind)
        else f"#{number}"
        for number, kind in enumerate(relation.types, start=1)
    ]
    return relation.project(", ".join(columns)).fetchall()


def _html_row(cell: str, values: Iterable[Any]) -> str:
    texts = ("NULL" if value is None else str(value) for value in values)
    cells = (_shortened(text) for text in texts)
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in cells) + "</tr>"


def _shortened(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def _csv_lines(relation: duckdb.DuckDBPyRelation) -> Iterator[Shown]:
    for values in (relation.columns, *_python_rows(relation)):
        row = [*map(_cell, values)]
        line = io.StringIO()
        # Without a terminator of its own, the writer would not quote line ends in captions.
        csv_module.writer(line).writerow(row)
        yield line.getvalue().removesuffix("\r\n")


def _cell(value: Any) -> Any:
    """Return a list or a struct as JSON, like the tables of `export`."""
    return json_text(value) if isinstance(value, list | tuple | dict) else value


def _table(relation: duckdb.DuckDBPyRelation, max_rows: int) -> Iterator[Shown]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):  # DuckDB draws a table only by printing it
        width = shutil.get_terminal_size((120, 24)).columns
        relation.show(max_rows=max_rows, max_width=width)
    yield printed.getvalue().rstrip("\n")
