"""Interpret a user's SQL: find what it reads, and fill in joined columns and `rank(x)`.

DuckDB parses it. Only the syntax tree is changed, so quotes, comments and nesting need no care.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from ncclean.base.schema import NEIGHBOURS, SCORES
from ncclean.errors import InputError
from ncclean.storage.catalog import first_line
from ncclean.storage.column_names import ColumnNames
from ncclean.storage.quoting import identifier
from ncclean.storage.sql_tree import Node, is_expression, is_rank, own_tables, parse, written

_CONDITIONS = ("BOOLEAN", '"NULL"')  # or integers, which others' tables use instead
_MISSING = re.compile(
    r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"'
)
_MEANT = re.compile(r'^Did you mean "([^"]+)"', re.MULTILINE)
_KIND = re.compile(r"^(Binder|Catalog|Parser) Error: ")


@dataclass(frozen=True)
class Expression:
    """An SQL expression over the columns of a score table and the tables joined to it.

    `sql` has the names that DuckDB knows, and `columns` are the columns that it reads. `ranks` are
    the arguments of `rank`; `sql` reads each from the column `rank_column(argument)`. `column` is
    its name if it is only a column, `kind` its SQL type once that is known.
    """

    sql: str
    columns: frozenset[str] = frozenset()
    ranks: tuple[str, ...] = ()
    column: str | None = None
    kind: str | None = None


def rank_column(argument: str) -> str:
    """Return the name of the column that holds the percent rank of an expression."""
    return f"rank({argument})"


def one_expression(text: str, option: str) -> str:
    """Parse SQL as a single expression, and return DuckDB's spelling of it. Raises `InputError`."""
    try:
        return str(duckdb.SQLExpression(text))
    except duckdb.Error as error:
        raise InputError(f"{option} takes one SQL expression: {first_line(error)}") from error


def parse_expression(
    connection: duckdb.DuckDBPyConnection, text: str, option: str, names: ColumnNames
) -> Expression:
    """Parse an SQL expression over the columns, or the plain name of a column.

    Any connection serves: parsing reads no table. Raises `InputError` for anything but one
    expression, an unknown column of a joined table, and `rank` where it cannot be computed.
    """
    named = names.named(text)
    if named is not None:
        return Expression(identifier(named), frozenset({named}), (), named)
    one_expression(text, option)
    tree = parse(connection, f"SELECT {text}")
    if tree is None or not is_expression(tree):
        raise InputError(f"{option} takes one SQL expression, got {text!r}")
    select = tree["statements"][0]["node"]
    reader = _Reader(connection, names, option, tree)
    select["select_list"] = reader.rewrite(select["select_list"])
    sql = written(connection, tree).removeprefix("SELECT ")
    is_column = select["select_list"][0]["class"] == "COLUMN_REF" and len(reader.columns) == 1
    column = next(iter(reader.columns)) if is_column and not reader.ranks else None
    return Expression(f"({sql})", frozenset(reader.columns), tuple(reader.ranks), column)


def bind_expression(
    connection: duckdb.DuckDBPyConnection,
    text: str,
    option: str,
    names: ColumnNames,
    *,
    is_condition: bool = False,
) -> Expression:
    """Parse an SQL expression and check that DuckDB can compute it, without reading a table.

    Raises `InputError`, in one sentence that begins with the option, if it cannot be computed, has
    more or fewer values than there are pairs, or is a condition that is not boolean.
    """
    expression = parse_expression(connection, text, option, names)
    columns = ", ".join(f"NULL::{kind} AS {identifier(n)}" for n, kind in names.types.items())
    ranks = "".join(
        f", (({argument})::DOUBLE) AS {identifier(rank_column(argument))}"
        for argument in expression.ranks
    )
    try:
        kind = type_per_pair(
            connection,
            f"WITH scores AS (SELECT {columns})",
            f"(SELECT *{ranks} FROM scores) AS scores",
            expression.sql,
        )
    except duckdb.Error as error:
        reason = missing_column_hint(text, names.types) or explain(error, names.types)
        if text.isidentifier() and names.named(text) is None:
            reason = missing_column(text, names.types)
        raise InputError(f"{option}: {reason}") from error
    except NotPerPair as error:
        raise InputError(f"{option}: {error}") from None
    if is_condition and kind not in _CONDITIONS and "INT" not in kind:
        raise InputError(f"{option} takes a condition, and {text} is {kind}: compare it")
    return replace(expression, kind=kind)


class NotPerPair(ValueError):
    """An SQL expression that does not have exactly one value for each row."""


def type_per_pair(
    connection: duckdb.DuckDBPyConnection,
    common: str,
    source: str,
    sql: str,
    *,
    alone: bool = False,
) -> str:
    """Return the type of an SQL expression with one value for each row of `source`; read nothing.

    Window functions and subqueries are allowed: a subquery is one value, or a test for membership.
    With `alone`, window functions are refused, too: they look at other pairs. Raises `NotPerPair`
    for aggregates, `unnest` and expressions for several columns, and `duckdb.Error` for what cannot
    be computed.
    """
    try:
        # Beside a column, so that an aggregate over all pairs is refused.
        described = connection.execute(f"DESCRIBE {common} SELECT *, {sql} FROM {source}")
        kinds = [str(row[1]) for row in described.fetchall()][_width(connection, common, source) :]
    except duckdb.BinderException as error:
        if "GROUP BY" in str(error):
            raise NotPerPair(
                "an aggregate has one value for all pairs: put it in a subquery, as in "
                "similarity > (SELECT avg(similarity) FROM scores)"
            ) from None
        raise
    if len(kinds) != 1:
        raise NotPerPair(f"it stands for {len(kinds)} columns, and takes one value for each pair")
    # DuckDB recognises aggregates and unnesting by any name: in WHERE it refuses both. It also
    # refuses window functions, which are tested without their contents.
    tested = sql if alone else _without_windows(connection, sql)
    try:
        connection.execute(f"{common} SELECT 1 FROM {source} WHERE ({tested}) IS NULL LIMIT 0")
    except duckdb.BinderException as error:
        if "UNNEST" in str(error):
            raise NotPerPair("unnest gives several rows for a pair, or none") from None
        if "window functions" in str(error):
            raise NotPerPair("a window function looks at other pairs of the shard") from None
        raise
    return kinds[0]


def _width(connection: duckdb.DuckDBPyConnection, common: str, source: str) -> int:
    return len(connection.execute(f"DESCRIBE {common} SELECT * FROM {source}").fetchall())


def _without_windows(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Replace the window functions of an expression by NULL."""
    tree = parse(connection, f"SELECT {sql}")
    null = parse(connection, "SELECT NULL")
    if tree is None or null is None:
        return sql
    constant = null["statements"][0]["node"]["select_list"][0]

    def replaced(value: Any) -> Any:
        if isinstance(value, list):
            return [replaced(one) for one in value]
        if not isinstance(value, dict):
            return value
        if value.get("class") == "WINDOW":
            return {**constant, "alias": value.get("alias", "")}
        return {key: replaced(inner) for key, inner in value.items()}

    select = tree["statements"][0]["node"]
    select["select_list"] = replaced(select["select_list"])
    return written(connection, tree).removeprefix("SELECT ")


def explain(error: duckdb.Error, columns: Iterable[str]) -> str:
    """Return an error of DuckDB on one line; for a missing column, with the existing columns."""
    text = str(error)
    missing = _MISSING.search(text)
    if missing is not None:
        return missing_column(missing[1] or missing[2], columns)
    meant = _MEANT.search(text)
    reason = _KIND.sub("", first_line(error))
    return f"{reason.rstrip('!.')} (did you mean {meant[1]}?)" if meant else reason


def missing_column_hint(text: str, columns: Iterable[str]) -> str | None:
    """Return advice on a missing column that `ncclean neighbours` computes; None for others."""
    for name in NEIGHBOURS.names:
        if name in text and name not in SCORES.names and name not in columns:
            return (
                f"there is no column {name!r}: `ncclean neighbours` computes it, and --join "
                "neighbours.parquet adds it to the scores"
            )
    return None


def missing_column(name: str, existing: Iterable[str]) -> str:
    """Return a message about a missing column: the command that adds it, or similar names."""
    columns = list(existing)
    close = difflib.get_close_matches(name, columns, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    sentence = f"there is no column {name!r}{meant}; there are {', '.join(columns)}"
    return missing_column_hint(name, columns) or sentence


def parse_query(connection: duckdb.DuckDBPyConnection, sql: str, names: ColumnNames) -> Expression:
    """Parse a whole SELECT over joined tables; in it, `rank` is SQL's window function.

    A joined table whose name the statement defines anew is left alone. A statement that DuckDB
    cannot parse is returned unchanged, reading all columns.
    """
    tree = parse(connection, sql)
    if tree is None or len(tree["statements"]) != 1:
        return Expression(sql, frozenset(names.types))
    node = tree["statements"][0]["node"]
    reader = _Reader(connection, names, "the query", None, frozenset(own_tables(node)))
    tree["statements"][0]["node"] = reader.rewrite(node)
    return Expression(written(connection, tree), frozenset(reader.columns))


@dataclass
class _Reader:
    """Collects what a tree reads, and renames it; without `template`, leaves `rank` alone."""

    connection: duckdb.DuckDBPyConnection
    names: ColumnNames
    option: str
    template: Node | None
    shadowed: frozenset[str] = frozenset()
    columns: set[str] = field(default_factory=set)
    ranks: list[str] = field(default_factory=list)
    inside: str = ""  # the construct around the node that must not contain a rank

    def rewrite(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.rewrite(one) for one in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("class")
        if kind == "COLUMN_REF":
            return {**value, "column_names": self._renamed(value["column_names"])}
        if kind == "STAR" or value.get("ref_type") == "NATURAL":
            self.columns |= set(self.names.types)
        for name in value.get("using_columns", ()):
            self.columns |= {self.names.named(name) or name} & set(self.names.types)
        if kind == "FUNCTION" and self.template is not None and is_rank(value):
            return self._rank(value)
        if kind in ("SUBQUERY", "LAMBDA"):
            return self._within(f"a {kind.lower()}", value)
        return {key: self.rewrite(inner) for key, inner in value.items()}

    def _within(self, what: str, value: Node) -> Node:
        before, self.inside = self.inside, what
        result = {key: self.rewrite(inner) for key, inner in value.items()}
        self.inside = before
        return result

    def _renamed(self, parts: list[str]) -> list[str]:
        """Rewrite `dfn.similarity`, after a table or before a field, as the column's one name."""
        for first in range(len(parts)):
            for last in range(len(parts), first, -1):
                inner = parts[first:last]
                if len(inner) > 1 and inner[0].lower() in self.shadowed:
                    continue
                # Only a name that begins the reference can be wrong; others may be fields.
                is_known = len(inner) != 2 or first == 0 or not self.names.is_table(inner[0])
                name = self._find(inner) if is_known or self._has(inner) else None
                if name is not None:
                    self.columns.add(name)
                    is_own = len(inner) == 1 and inner[0].lower() == name.lower()
                    return [*parts[:first], inner[0] if is_own else name, *parts[last:]]
        if parts[0].lower() in self.shadowed:  # whole rows, as a struct
            self.columns |= set(self.names.types)
        return parts

    def _find(self, parts: list[str]) -> str | None:
        try:
            return self.names.find(parts)
        except InputError as error:
            raise InputError(f"{self.option}: {error}") from None

    def _has(self, parts: list[str]) -> bool:
        return self.names.named(".".join(parts)) is not None

    def _rank(self, node: Node) -> Node:
        arguments = node.get("children") or [one["expression"] for one in node.get("arguments", ())]
        if len(arguments) != 1:
            raise InputError(f"{self.option}: rank takes one expression, as in rank(similarity)")
        if self.inside:
            raise InputError(f"{self.option}: rank cannot be inside {self.inside}")
        inner = self._within("another rank", {"argument": arguments[0]})["argument"]
        assert self.template is not None
        statement = self.template["statements"][0]
        alone = {**statement, "node": {**statement["node"], "select_list": [inner]}}
        sql = written(self.connection, {**self.template, "statements": [alone]}).removeprefix(
            "SELECT "
        )
        if sql not in self.ranks:
            self.ranks.append(sql)
        return {
            "class": "COLUMN_REF",
            "type": "COLUMN_REF",
            "alias": "",
            "query_location": node["query_location"],
            "column_names": [rank_column(sql)],
        }
