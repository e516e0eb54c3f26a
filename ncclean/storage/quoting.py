"""Names and texts as SQL writes them; loads no DuckDB, which declarations do not need."""

from __future__ import annotations


def quoted(text: str) -> str:
    """A string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A quoted name of SQL."""
    return '"' + name.replace('"', '""') + '"'
