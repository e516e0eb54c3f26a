"""DuckDB over score files: the view `scores`, and nothing else within reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import duckdb
import fsspec

from ncclean import stores
from ncclean.errors import InputError
from ncclean.storage.tables import table_files


def connect(
    paths: Iterable[str],
    memory_limit: str | None = None,
    *,
    beside: Mapping[str, Iterable[str]] | None = None,
    writable: Path | None = None,
) -> duckdb.DuckDBPyConnection:
    """An in-memory connection on which the view `scores` reads the given score files.

    `memory_limit` is DuckDB's (`4GB`); without, it takes most of the machine's. `beside` has
    further views and their files, `writable` is the one file that COPY may write.

    Queries can read these files and no others: external access is off, extensions are not
    loaded, and neither can be turned on again. Raises `InputError` for a path without score
    files or a file that is not Parquet.
    """
    views = {"scores": table_files(paths)}
    views |= {name: table_files(others) for name, others in (beside or {}).items()}
    files = [file for members in views.values() for file in members]
    try:
        connection = duckdb.connect()
        if memory_limit is not None:
            connection.execute("SET memory_limit = ?", [memory_limit])
    except duckdb.Error as error:
        raise InputError(f"memory limit {memory_limit!r}: {_first_line(error)}") from error
    for scheme in {file.split("://", 1)[0] for file in files if stores.is_url(file)}:
        connection.register_filesystem(fsspec.filesystem(scheme))
    for name, members in views.items():
        try:
            # The order of the rows is that of the input; a query without ORDER BY shows it.
            connection.execute(
                f"CREATE VIEW {name} AS "
                f"SELECT * FROM read_parquet([{_listed(members)}], union_by_name=true)"
            )
        except duckdb.Error as error:
            message = f"{members[0]} cannot be read as Parquet: {_first_line(error)}"
            raise InputError(message) from error
    allowed = files if writable is None else [*files, str(writable)]
    connection.execute(f"SET allowed_paths = [{_listed(allowed)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def query(
    sql: str, paths: Iterable[str], memory_limit: str | None = None
) -> duckdb.DuckDBPyRelation:
    """Run one SELECT (DESCRIBE, SUMMARIZE and SHOW count as such) over the view `scores`.

    Raises `InputError` for any other statement, for several, and for what DuckDB rejects.
    """
    connection = connect(paths, memory_limit)
    try:
        statements = connection.extract_statements(sql)
        # The named files are readable and so, for DuckDB, writable: COPY could overwrite them.
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise InputError("query takes one SELECT statement over the view `scores`")
        return connection.sql(sql)
    except duckdb.Error as error:
        raise InputError(f"the query failed: {error}") from error


def _listed(files: Iterable[str]) -> str:
    return ", ".join(quoted(file) for file in files)


def quoted(text: str) -> str:
    """A string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
