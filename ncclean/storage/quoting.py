"""Quote names and texts for SQL; loads no DuckDB, which declarations do not need."""

from __future__ import annotations

_ZEROS = "0" * 20  # digits of the largest number used for ordering names


def quoted(text: str) -> str:
    """Return a text as a string literal of SQL.

    A text with NUL, which DuckDB's syntax trees lose, becomes an expression.
    """
    literal = "'" + text.replace("'", "''") + "'"
    return "(" + literal.replace("\0", "' || chr(0) || '") + ")" if "\0" in text else literal


def identifier(name: str) -> str:
    """Return a name as a quoted identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def natural_order(text: str) -> str:
    """Return SQL to sort a text like file managers do: numbers by value, letters in any case.

    `text` is SQL for the text.
    """
    padded = f"regexp_replace(lower({text}), '([0-9]+)', '{_ZEROS}\\1', 'g')"
    return f"regexp_replace({padded}, '0*([0-9]{{{len(_ZEROS)}}})', '\\1', 'g'), {text}"


def finite(value: str) -> str:
    """Return SQL that is null where `value` is infinite or NaN, which DuckDB ranks above all."""
    return f"CASE WHEN isfinite({value}::DOUBLE) THEN {value} END"


def truth_of(kind: str) -> str:
    """Return SQL of the column `is_noisy` as a boolean, for a column of this type; NaN is unknown.

    DuckDB takes NaN for true.
    """
    truth = "is_noisy::BOOLEAN"
    is_float = kind in ("FLOAT", "DOUBLE")
    return f"CASE WHEN NOT isnan(is_noisy) THEN {truth} END" if is_float else truth
