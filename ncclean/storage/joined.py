"""Join score files with other tables, and compute percent ranks, in bounded memory.

Several passes over a join would repeat it, so it is done once: the columns to be read are written
to a temporary Parquet file, in the order of the scores, which it then replaces. DuckDB does all
joins, groups and sorts, and spills what exceeds its memory limit to disk.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from ncclean.base.local_copies import with_original_names
from ncclean.data.selection import CAPTION_NUMBER
from ncclean.errors import InputError
from ncclean.storage.catalog import (
    check_select,
    columns_of,
    connect,
    first_line,
    lock,
    temporary_folder,
)
from ncclean.storage.column_names import ColumnNames, JoinedFile
from ncclean.storage.expressions import Expression, bind_expression, parse_query, rank_column
from ncclean.storage.quoting import identifier, quoted
from ncclean.storage.tables import local_tables, say_others

SCORES = "scores"
SCORES_ALONE = "_scores_alone"  # a view of `scores` without joined columns
PLACED = "_placed_scores"  # `scores` with `PLACE`, if `prepare` was asked for it
PLACE = "_place"  # of a row in the input; names with this prefix are ours


@dataclass
class JoinedScores:
    """The view `scores` of a connection: score files, and the tables joined to them by `joins`.

    Until `prepare`, the view has only the score files. After it, `partners` counts the score rows
    with a match in each joined table, by name.
    """

    connection: duckdb.DuckDBPyConnection
    names: ColumnNames
    joins: tuple[JoinedFile, ...]
    paths: Sequence[str]
    files: list[str]  # local score files
    partners: dict[str, int] = field(default_factory=dict)
    work: Path = field(default_factory=temporary_folder)

    @classmethod
    def open(
        cls,
        paths: Sequence[str],
        joins: Sequence[str] = (),
        memory_limit: str | None = None,
        *,
        beside: Mapping[str, Iterable[str]] | None = None,
        writable: Path | None = None,
    ) -> JoinedScores:
        """Open score files and the tables to join, each `PATH` or `NAME=PATH`.

        Logs a warning for a table that was made from other versions of the shards. Raises
        `InputError` for paths without tables, and for a table without a common key with the scores,
        with duplicate keys, or with a taken name.
        """
        files = tuple(JoinedFile.parse(text) for text in joins)
        views = {_view(number): [file.path] for number, file in enumerate(files, start=1)}
        work = temporary_folder()
        local = local_tables(paths)
        connection = connect(
            local,
            memory_limit,
            beside={**(beside or {}), **views},
            writable=writable,
            view=_view(0),
            place=PLACE,
            work=work,
        )
        try:
            scores, *tables = (_columns(connection, number) for number in range(len(files) + 1))
            names = ColumnNames.of(scores, zip(files, tables, strict=True))
            joined = cls(connection, names, files, paths, local, work=work)
            named = {**(beside or {}), **{one.name: [one.path] for one in files}}
            say_others(named, paths)
            for number in range(1, len(files) + 1):
                joined._check_distinct(number)
            joined._create_view(f"SELECT * EXCLUDE ({PLACE}) FROM {SCORES_ALONE}")
        except BaseException:
            connection.close()
            raise
        return joined

    def close(self) -> None:
        """Close the connection and remove the temporary files."""
        self.connection.close()
        shutil.rmtree(self.work, ignore_errors=True)

    def __enter__(self) -> JoinedScores:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expression(self, text: str, option: str, *, is_condition: bool = False) -> Expression:
        """Read SQL over the columns, with `rank(x)` for the percent rank over the scored pairs.

        Raises `InputError`, in one sentence with the name of the option, for anything but one
        expression over existing columns, with one value for each pair.
        """
        return bind_expression(self.connection, text, option, self.names, is_condition=is_condition)

    def prepare(
        self,
        columns: Iterable[str],
        expressions: Iterable[Expression] = (),
        *,
        is_placed: bool = False,
    ) -> list[str]:
        """Compute joins and ranks once; return the local files that then hold the scores.

        Afterwards the view `scores` has `columns` and those of the expressions, as far as they
        exist; without joins and ranks, it is unchanged. Rows and their order are those of the score
        files. With `is_placed`, the view `PLACED` has the same columns and each row's position in
        the input: its file and its number in it. Raises `InputError` for a joined table without
        matching rows.
        """
        expressions = list(expressions)
        ranks = list(dict.fromkeys(rank for one in expressions for rank in one.ranks))
        if not self.joins and not ranks:
            if is_placed:
                self._create_view(f"SELECT * FROM {SCORES_ALONE}", PLACED)
            lock(self.connection)
            return self.files
        needed = {*columns}.union(*(one.columns for one in expressions))
        wanted = [name for name in self.names.types if name in needed]
        wanted = wanted or list(self.names.types)[:1]
        self.work.mkdir()
        try:
            # Only the last pass sorts; keeping an order until then would cost memory.
            self.connection.execute("SET preserve_insertion_order = false")
            file = self._write([*wanted, PLACE] if is_placed else wanted, ranks)
            self.connection.execute("SET preserve_insertion_order = true")
            self._count_partners(file)
        except duckdb.Error as error:
            raise InputError(f"the tables cannot be joined: {first_line(error)}") from error
        lock(self.connection)
        names = ", ".join(map(identifier, [*wanted, *map(rank_column, ranks)]))
        self._create_view(f"SELECT {names} FROM {_reading(file)}")
        if is_placed:
            self._create_view(f"SELECT {names}, {PLACE} FROM {_reading(file)}", PLACED)
        return [str(file)]

    def _write(self, columns: list[str], ranks: list[str]) -> Path:
        """Write the rows in input order, with the percent rank of each of `ranks`.

        Each pass does one join or sort: each takes all available memory, and DuckDB gives up if
        several in one query together exceed the limit.
        """
        held = [
            name for name in self.names.types if name in (*columns, "status") or self._is_key(name)
        ]
        own = [identifier(name) for name in held if not self.names.origins[name].table]
        source = f"(SELECT {', '.join([*own, PLACE])} FROM {SCORES_ALONE})"
        before: Path | None = None
        for number, keys in enumerate(self.names.keys, start=1):
            added = [
                f"joined.{identifier(self.names.origins[name].column)} AS {identifier(name)}"
                for name in held
                if self.names.origins[name].table == number
            ]
            added.append(f"joined.{PLACE} IS NOT NULL AS {_partner(number)}")
            conditions = " AND ".join(
                f"{_key(SCORES, key)} = {_key('joined', key)}" for key in keys
            )
            join = f"{_view(number)} AS joined ON {conditions}"
            before = self._add(f"joined_{number}", source, added, join, before)
            source = _reading(before)
        for number, argument in enumerate(ranks):
            is_scored = "status = 'ok'" if "status" in held else "true"
            value = f"(CASE WHEN {is_scored} THEN ({argument})::DOUBLE END)"
            self._create_ranks(value, source)
            added = [f"ranks._percent_rank AS {identifier(rank_column(argument))}"]
            join = f"ranks ON {value} = ranks._ranked_value"
            before = self._add(f"ranked_{number}", source, added, join, before)
            source = _reading(before)
            self.connection.execute("DROP TABLE ranks")
        names = [*map(identifier, columns), *(identifier(rank_column(rank)) for rank in ranks)]
        names += [_partner(number) for number in range(1, len(self.joins) + 1)]
        file = self._copy("sorted", f"SELECT {', '.join(names)} FROM {source} ORDER BY {PLACE}")
        if before is not None:
            before.unlink()
        return file

    def _add(
        self, name: str, source: str, columns: list[str], join: str, before: Path | None
    ) -> Path:
        """Write a file of `source` with columns of a joined relation; remove the previous file."""
        added = ", ".join([f"{SCORES}.*", *columns])
        file = self._copy(name, f"SELECT {added} FROM {source} AS {SCORES} LEFT JOIN {join}")
        if before is not None:
            before.unlink()
        return file

    def _is_key(self, name: str) -> bool:
        keys = {key for keys in self.names.keys for key in keys}
        return name.lower() in keys and not self.names.origins[name].table

    def _create_ranks(self, value: str, source: str) -> None:
        """Create the table `ranks`: distinct values, and the share of the others below each.

        Values are counted first, so that ties are equal and only distinct values are sorted: for
        32-bit cosines, far fewer than pairs.
        """
        self.connection.execute(
            f"""CREATE TEMP TABLE ranks AS
            WITH counted AS (
              SELECT {value} AS _ranked_value, count(*) AS pairs FROM {source} AS {SCORES}
              WHERE NOT isnan({value}) GROUP BY 1)
            SELECT _ranked_value, coalesce(
              (sum(pairs) OVER (ORDER BY _ranked_value ROWS UNBOUNDED PRECEDING) - pairs)::DOUBLE
                / nullif((SELECT sum(pairs) FROM counted)::DOUBLE - 1, 0), 0) AS _percent_rank
            FROM counted"""
        )

    def _copy(self, name: str, select: str) -> Path:
        file = self.work / f"{name}.parquet"
        self.connection.execute(
            f"COPY ({select}) TO {quoted(str(file))} "
            "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
        )
        return file

    def _create_view(self, select: str, name: str = SCORES) -> None:
        self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {select}")

    def _check_distinct(self, number: int) -> None:
        """Raise `InputError` if two rows of a joined table have the same key."""
        keys = self.names.keys[number - 1]
        values = ", ".join(_key("joined", key) for key in keys)
        has_keys = " AND ".join(f"{_key('joined', key)} IS NOT NULL" for key in keys)
        rows = f"FROM {_view(number)} AS joined WHERE {has_keys}"
        # Group by 64 bits, not by text: a third of the memory. The second query separates different
        # keys with the same hash.
        repeated = f"SELECT hash({values}) AS hashed {rows} GROUP BY 1 HAVING count(*) > 1"
        if not self.connection.execute(f"{repeated} LIMIT 1").fetchall():
            return
        first = self.connection.execute(
            f"SELECT {values} {rows} AND hash({values}) IN ({repeated}) "
            f"GROUP BY {values} HAVING count(*) > 1 ORDER BY min({PLACE}) LIMIT 1"
        ).fetchall()
        if first:
            named = ", ".join(f"{key} {value}" for key, value in zip(keys, first[0], strict=True))
            path = self.joins[number - 1].path
            raise InputError(f"{path} cannot be joined: it has several rows with {named}; keep one")

    def _count_partners(self, file: Path) -> None:
        """Fill `partners`. Raises `InputError` for a table without any."""
        for number, joined in enumerate(self.joins, start=1):
            rows, count = self.connection.execute(
                f"SELECT count(*), count(*) FILTER ({_partner(number)}) FROM {_reading(file)}"
            ).fetchall()[0]
            if rows and not count:
                keys = self.names.keys[number - 1]
                examples = (self._example(table, keys) for table in (0, number))
                raise InputError(
                    f"{joined.path} has no row of these scores, compared by {', '.join(keys)}: "
                    "the scores have {}, it has {}".format(*examples)
                )
            self.partners[joined.name] = count

    def _example(self, table: int, keys: Sequence[str]) -> str:
        values = ", ".join(_key("joined", key) for key in keys)
        rows = self.connection.execute(
            f"SELECT {values} FROM {_view(table)} AS joined LIMIT 1"
        ).fetchall()
        return ", ".join(map(str, rows[0])) if rows else "no rows"


def query(
    sql: str, paths: Sequence[str], memory_limit: str | None = None, *, joins: Sequence[str] = ()
) -> duckdb.DuckDBPyRelation:
    """Run one SELECT over the view `scores`; DESCRIBE, SUMMARIZE and SHOW are allowed, too.

    `joins` are tables whose columns the view also has. Raises `InputError` for any other statement,
    for several, for one that DuckDB rejects, and for tables that cannot be joined.
    """
    joined = JoinedScores.open(paths, joins, memory_limit)
    try:
        check_select(joined.connection, sql)
        # Without joins the text is unchanged: DuckDB's tree cannot represent every statement.
        parsed = parse_query(joined.connection, sql, joined.names) if joins else Expression(sql)
        joined.prepare((), [parsed])
        relation: duckdb.DuckDBPyRelation = joined.connection.sql(parsed.sql)
        # DuckDB sees the values only now. Versions before 2 keep what they executed.
        run = "materialize" if hasattr(relation, "materialize") else "execute"
        relation = getattr(relation, run)()
    except duckdb.Error as error:
        raise InputError(with_original_names(f"the query failed: {error}")) from error
    weakref.finalize(relation, shutil.rmtree, joined.work, ignore_errors=True)
    return relation


def _columns(connection: duckdb.DuckDBPyConnection, number: int) -> dict[str, str]:
    columns = columns_of(connection, _view(number))
    del columns[PLACE]
    return columns


def _view(number: int) -> str:
    """Create a view of only the score files, or of one joined table."""
    return f"_joined_{number}" if number else SCORES_ALONE


def _partner(number: int) -> str:
    return f"{PLACE}_{number}"


def _key(table: str, key: str) -> str:
    """Return a key as text: a uid may be a number in one of two tables.

    Of a caption number, the value counts: pandas stores integers with gaps as floats, and gaps as
    NaN. A missing one is that of the only caption.
    """
    column = f"{table}.{identifier(key)}"
    if key != CAPTION_NUMBER:
        return f"{column}::VARCHAR"
    text = f"nullif({column}::VARCHAR, 'nan')"
    return f"coalesce(TRY_CAST({column} AS BIGINT)::VARCHAR, {text}, '0')"


def _reading(file: Path) -> str:
    return f"read_parquet({quoted(str(file))})"
