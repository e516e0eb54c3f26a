"""Open score files in DuckDB: the view `scores`, with everything else out of reach."""

from __future__ import annotations

import contextlib
import uuid
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path

import duckdb

from ncclean.base import stores
from ncclean.base.local_copies import with_original_names
from ncclean.base.scratch import process_folder
from ncclean.data.shards import check_named_once
from ncclean.errors import InputError
from ncclean.storage.quoting import identifier, quoted
from ncclean.storage.tables import fingerprints, local_tables

# File index above, rows below: both are virtual columns, which cost nothing unless read.
_VIRTUAL = ("file_index", "file_row_number")
ROW_PLACE = "(file_index::BIGINT << 40 | file_row_number)::BIGINT"  # Parquet has no larger integers
# Text never compresses to a two hundredth; a few bytes that stand for gigabytes do.
_LARGEST_RATIO, _WORTH_A_LOOK = 200, 64 << 20
# The day or the text of a time, such as in the condition of a cause, is the same on each machine.
SAME_TIMES = "SET TimeZone = 'UTC'"
_connections: weakref.WeakSet[duckdb.DuckDBPyConnection] = weakref.WeakSet()


def connect(
    paths: Iterable[str],
    memory_limit: str | None = None,
    *,
    beside: Mapping[str, Iterable[str]] | None = None,
    writable: Path | None = None,
    view: str = "scores",
    place: str | None = None,
    work: Path | None = None,
    is_own: bool = False,
) -> duckdb.DuckDBPyConnection:
    """Open DuckDB in memory with the view `scores` over score files, and nothing else within reach.

    `memory_limit` is DuckDB's (`4GB`), by default most of the machine's; the rest spills to a
    temporary folder. `beside` has further views and their files, `writable` is the one file that
    COPY may write, `work` a folder of such files, with which settings stay open until `lock`.
    `view` is another name for `scores`, `place` names a further column of all views: the row's
    position in the input. With `is_own`, this command wrote the files: any sizes and names are
    right.

    Queries can read these files and no others: external access is off, extensions are not
    loaded, and neither can be turned on again. Raises `InputError` for a path without score
    files, a file that is not Parquet, and two score files with the same pairs.
    """
    views = {view: local_tables(paths)}
    views |= {name: local_tables(others) for name, others in (beside or {}).items()}
    files = [file for members in views.values() for file in members]
    try:
        connection = duckdb.connect()
        _connections.add(connection)
        # Unless the main program is a file, DuckDB draws a progress bar on stdout, amid JSON.
        with contextlib.suppress(duckdb.InvalidInputException):  # a notebook without ipywidgets
            connection.execute("SET enable_progress_bar = false")
        connection.execute(SAME_TIMES)
        # Where NaN is possible (see `scanned`), it would be the largest value of every column.
        connection.execute("SET disabled_optimizers = 'statistics_propagation'")
        connection.execute("SET temp_directory = ?", [str(temporary_folder())])
        if memory_limit is not None:
            connection.execute("SET memory_limit = ?", [memory_limit])
    except duckdb.Error as error:
        raise InputError(f"--memory-limit {memory_limit}: {first_line(error)}") from error
    numbered = f", {ROW_PLACE} AS {identifier(place)}" if place is not None else ""
    for name, members in views.items():
        try:
            # Rows keep the order of the input, which a query without ORDER BY shows.
            if not is_own:
                _check_sizes(connection, members)
                if place is not None:
                    _check_names(connection, members, place)
                if name == view:
                    _check_counted_once(connection, members)
            connection.execute(f"CREATE VIEW {name} AS SELECT *{numbered} FROM {scanned(members)}")
        except duckdb.Error as error:
            message = f"{members[0]} cannot be read as Parquet: {first_line(error)}"
            raise InputError(with_original_names(message)) from error
    allowed = files if writable is None else [*files, str(writable)]
    connection.execute(f"SET allowed_paths = [{_listed(allowed)}]")
    if work is not None:
        connection.execute(f"SET allowed_directories = [{quoted(str(work))}]")
    connection.execute("SET enable_external_access = false")
    if work is None:  # else the caller changes settings first, then locks them
        lock(connection)
    return connection


def _check_sizes(connection: duckdb.DuckDBPyConnection, files: list[str]) -> None:
    """Raise `InputError` for a column far larger than its file can hold.

    Its values would be read one by one: a one-gigabyte dictionary fills any memory.
    """
    too_large = connection.execute(
        "SELECT file_name, path_in_schema, total_compressed_size, total_uncompressed_size "
        f"FROM parquet_metadata([{_listed(files)}]) WHERE total_uncompressed_size > "
        f"greatest({_WORTH_A_LOOK}, {_LARGEST_RATIO} * total_compressed_size) LIMIT 1"
    ).fetchone()
    if too_large is not None:
        file, column, packed, unpacked = too_large
        raise InputError(
            f"{with_original_names(file)}: column {column} unpacks from {packed:,} to "
            f"{unpacked:,} bytes, so it is not read"
        )


def _check_names(connection: duckdb.DuckDBPyConnection, files: list[str], place: str) -> None:
    """Raise `InputError` for a column that would replace the position of the rows."""
    rows = connection.execute(f"DESCRIBE SELECT * FROM {scanned(files)}").fetchall()
    for name, *_ in rows:
        if name.lower() in _VIRTUAL or name.lower().startswith(place):
            raise InputError(
                f"{with_original_names(files[0])} has a column {name}, which is the name of one of "
                "DuckDB or ncclean: rename it"
            )


def _check_counted_once(connection: duckdb.DuckDBPyConnection, files: list[str]) -> None:
    """Raise `InputError` if pairs would count twice: two files have the same ones.

    Filtered tables keep the fingerprints of all shards, so files of one shard may have other pairs.
    """
    check_named_once([stores.canonical(with_original_names(file)) for file in files])
    seen: set[tuple[str, str]] = set()
    common: set[str] = set()
    for file in files if len(files) > 1 else ():
        shards = fingerprints([file]).items()
        urls = {(name, url) for name, shard in shards for url in shard.urls.split()}
        common |= {name for name, _ in urls & seen}
        seen |= urls
    if not common:
        return
    scan = scanned(files)
    identity = {"shard", "key", "row", "caption_number", "uid"} & {*columns_of(connection, scan)}
    if "shard" not in identity or not identity & {"key", "row", "uid"}:
        return  # nothing tells the pairs of a shard apart
    ends = "min(file_index) AS first, max(file_index) AS last"
    twice = connection.execute(
        f"WITH shared AS (SELECT shard, {ends} FROM {scan} WHERE list_contains(?, shard) "
        f"GROUP BY shard HAVING first < last) SELECT shard, {ends} FROM {scan} "
        f"WHERE shard IN (SELECT shard FROM shared) GROUP BY {', '.join(sorted(identity))} "
        "HAVING first < last ORDER BY ALL LIMIT 1",
        [sorted(common)],
    ).fetchone()
    if twice is not None:
        shard, first, last = twice
        raise InputError(
            f"{with_original_names(files[first])} and {with_original_names(files[last])} have the "
            f"same pairs of shard {shard}, which would count twice: leave one out"
        )


def interrupt_queries() -> None:
    """Interrupt all queries of this process, from another thread."""
    for connection in list(_connections):
        with contextlib.suppress(duckdb.Error):  # already closed
            connection.interrupt()


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """Forbid further changes to the settings of a DuckDB connection."""
    connection.execute("SET lock_configuration = true")


def check_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise `InputError` unless the SQL is a single SELECT, `duckdb.Error` if it is not SQL."""
    statements = connection.extract_statements(sql)
    # DuckDB can read the named files and so write them, too: COPY could overwrite them.
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise InputError("query takes one SELECT statement over the view `scores`")


def temporary_folder() -> Path:
    """Return a unique path for DuckDB's temporary files; it is not created.

    DuckDB removes its files when its connection is closed, the end of the process removes the rest,
    and the next process what a killed one left.
    """
    # DuckDB's own choice is in the current folder, which may be slow, full or read-only.
    return process_folder() / uuid.uuid4().hex


def scanned(files: Iterable[str]) -> str:
    """Return SQL that reads Parquet files of any writer as one table."""
    # The least and largest values that a file states leave out NaN: without the option, DuckDB
    # takes isnan(x) for false, and x < 2 for true, where these are below 2.
    return f"read_parquet([{_listed(files)}], union_by_name=true, can_have_nan=true)"


def _listed(files: Iterable[str]) -> str:
    return ", ".join(quoted(file) for file in files)


def columns_of(connection: duckdb.DuckDBPyConnection, view: str) -> dict[str, str]:
    """Return the names and types of the columns of a view."""
    rows = connection.execute(f"DESCRIBE SELECT * FROM {view}").fetchall()
    return {str(row[0]): str(row[1]) for row in rows}


def first_line(error: Exception) -> str:
    """Return the first line of an error of DuckDB, with the file names that the user gave."""
    return with_original_names(str(error).splitlines()[0])
