"""Read DuckDB's syntax tree of a statement, as JSON, without reading tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb

Node = dict[str, Any]


def parse(connection: duckdb.DuckDBPyConnection, sql: str) -> Node | None:
    """Parse SQL into DuckDB's syntax tree; None unless it is a SELECT."""
    rows = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    tree: Node = json.loads(rows[0][0])
    return None if tree["error"] else tree


def written(connection: duckdb.DuckDBPyConnection, tree: Node) -> str:
    rows = connection.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)])
    return str(rows.fetchall()[0][0])


def nodes(tree: Any) -> Iterator[Node]:
    """Yield all nodes of a syntax tree, outer ones first."""
    if isinstance(tree, dict):
        yield tree
    for inner in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(inner, dict | list):
            yield from nodes(inner)


def names_in(connection: duckdb.DuckDBPyConnection, sql: str) -> set[str]:
    """Return the names in an SQL expression that refer to columns or to fields of columns."""
    references = (
        node
        for node in nodes(parse(connection, f"SELECT {sql}") or {})
        if node.get("class") == "COLUMN_REF"
    )
    return {name for reference in references for name in reference["column_names"]}


def own_tables(statement: Node) -> Iterator[str]:
    """Yield the names that a statement defines: tables, aliases and common table expressions."""
    for node in nodes(statement):
        if "class" not in node:
            names = (node.get(key) for key in ("alias", "table_name", "key"))
            yield from (name.lower() for name in names if isinstance(name, str))


def is_expression(tree: Node) -> bool:
    """Check whether a syntax tree is `SELECT expression` and nothing more."""
    statements = [statement["node"] for statement in tree["statements"]]
    return len(statements) == 1 and (
        len(statements[0].get("select_list", ())) == 1
        and statements[0]["from_table"]["type"] == "EMPTY"
        and not statements[0]["where_clause"]
        and not statements[0]["modifiers"]
    )


def is_rank(node: Node) -> bool:
    return str(node["function_name"]).lower() == "rank" and not node["schema"]
