"""Names and texts as SQL writes them; loads no DuckDB, which declarations do not need."""

from __future__ import annotations


def quoted(text: str) -> str:
    """A string literal of SQL; with NUL, which DuckDB's syntax trees lose, an expression."""
    literal = "'" + text.replace("'", "''") + "'"
    return "(" + literal.replace("\0", "' || chr(0) || '") + ")" if "\0" in text else literal


def identifier(name: str) -> str:
    """A quoted name of SQL."""
    return '"' + name.replace('"', '""') + '"'
