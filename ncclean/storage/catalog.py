"""DuckDB over score files: the view `scores`, and nothing else within reach."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb
import fsspec

from ncclean import stores
from ncclean.errors import InputError
from ncclean.storage.layout import table_files


def connect(paths: Iterable[str], memory_limit: str | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory connection on which the view `scores` reads the given score files.

    `memory_limit` is DuckDB's (`4GB`); without, it takes most of the machine's.

    Queries can read these files and no others: external access is off, extensions are not
    loaded, and neither can be turned on again. Raises `InputError` for a path without score
    files or a file that is not Parquet.
    """
    files = table_files(paths)
    try:
        connection = duckdb.connect()
        if memory_limit is not None:
            connection.execute("SET memory_limit = ?", [memory_limit])
    except duckdb.Error as error:
        raise InputError(f"memory limit {memory_limit!r}: {_first_line(error)}") from error
    for scheme in {file.split("://", 1)[0] for file in files if stores.is_url(file)}:
        connection.register_filesystem(fsspec.filesystem(scheme))
    listed = ", ".join(_quoted(file) for file in files)
    try:
        # The order of the rows is that of the input; a query without ORDER BY shows it.
        connection.execute(
            f"CREATE VIEW scores AS SELECT * FROM read_parquet([{listed}], union_by_name=true)"
        )
    except duckdb.Error as error:
        raise InputError(f"{files[0]} cannot be read as Parquet: {_first_line(error)}") from error
    connection.execute(f"SET allowed_paths = [{listed}]")
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


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
