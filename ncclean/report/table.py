"""A score table for the report: one DuckDB view with every column, even for an older table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from ncclean.errors import InputError
from ncclean.report.run_facts import RunFacts, read_facts
from ncclean.schema import SCORE_COLUMNS
from ncclean.storage.catalog import connect
from ncclean.storage.tables import table_files

_NEEDED = ("shard", "key", "row", "status", "similarity")
_SQL_TYPES = {"string": "VARCHAR", "float": "FLOAT", "int32": "INTEGER", "bool": "BOOLEAN"}


@dataclass(frozen=True)
class ScoreTable:
    """`connection` has the view `pairs`: the score columns, with nulls for missing ones.

    Only aggregates leave DuckDB, so a table of any size takes bounded memory.
    """

    connection: duckdb.DuckDBPyConnection
    facts: RunFacts
    columns: frozenset[str]  # of the files

    @classmethod
    def open(cls, paths: Sequence[str], memory_limit: str | None = None) -> ScoreTable:
        """Raises `InputError` for paths without score files and for other Parquet files."""
        connection = connect(paths, memory_limit)
        columns = frozenset(row[0] for row in connection.execute("DESCRIBE scores").fetchall())
        for name in _NEEDED:
            if name not in columns:
                raise InputError(f"{paths[0]} is not a score table: it has no column {name}")
        selected = ", ".join(
            column.name
            if column.name in columns
            else f"NULL::{_SQL_TYPES[str(column.type)]} AS {column.name}"
            for column in SCORE_COLUMNS
        )
        connection.execute(f"CREATE TEMP VIEW pairs AS SELECT {selected} FROM scores")
        return cls(connection, read_facts(table_files(paths)), columns)

    def rows(self, sql: str, parameters: object = None) -> list[tuple]:  # type: ignore[type-arg]
        """The few rows of an aggregate. Raises `InputError` if a file cannot be read to its end."""
        try:
            return self.connection.execute(sql, parameters).fetchall()
        except duckdb.OutOfMemoryException as error:
            raise InputError(f"the report needs more memory: {_first_line(error)}") from error
        except duckdb.Error as error:
            raise InputError(f"the score table cannot be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
