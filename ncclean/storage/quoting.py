"""Names and texts as SQL writes them; loads no DuckDB, which declarations do not need."""

from __future__ import annotations

_ZEROS = "0" * 20  # digits of the largest number that names are ordered by


def quoted(text: str) -> str:
    """A string literal of SQL; with NUL, which DuckDB's syntax trees lose, an expression."""
    literal = "'" + text.replace("'", "''") + "'"
    return "(" + literal.replace("\0", "' || chr(0) || '") + ")" if "\0" in text else literal


def identifier(name: str) -> str:
    """A quoted name of SQL."""
    return '"' + name.replace('"', '""') + '"'


def natural_order(text: str) -> str:
    """SQL that orders a text as file managers do: numbers by their value, letters in any case."""
    padded = f"regexp_replace(lower({text}), '([0-9]+)', '{_ZEROS}\\1', 'g')"
    return f"regexp_replace({padded}, '0*([0-9]{{{len(_ZEROS)}}})', '\\1', 'g'), {text}"
