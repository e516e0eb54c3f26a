"""Write columns of a score table into the Lance data set whose pairs it scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from ncclean.base import stores
from ncclean.base.progress import SILENT, Progress
from ncclean.data.embeddings.units import LAYOUTS
from ncclean.data.lance_table import SCORE_PREFIX, lance_batches, open_lance
from ncclean.data.shards import ShardRef
from ncclean.data.sources import resolve_sources
from ncclean.errors import InputError, ShardError, one_line
from ncclean.storage.catalog import columns_of, connect, first_line
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.quoting import identifier
from ncclean.storage.score_run import ScoreRun

USUAL = ("status", "similarity", "neg_clip_loss", "noise_probability")
_BATCH_ROWS = 65_536
_UNFINISHED = f"{SCORE_PREFIX}unfinished_"  # columns being written
_MARK = {b"ncclean": b"scores"}  # marks our fields, so that no other column is replaced


@dataclass(frozen=True)
class AnnotatedRows:
    """The result of adding scores to a Lance data set.

    `rows` of the data set, `scored` of them with scores, the `columns` written and the new
    `version`.
    """

    rows: int
    scored: int
    columns: tuple[str, ...]
    version: int


def write_lance_scores(
    scores: Sequence[str], dataset: str, columns: Sequence[str] = (), progress: Progress = SILENT
) -> AnnotatedRows:
    """Add columns of a score table to a Lance data set, as `ncclean_NAME`; replace earlier ones.

    Rows are matched by `uid`, or without one by their position in the order in which `score` read
    them; a row without scores gets nulls. The data set gets new versions and keeps its old ones.
    Raises `InputError` for missing columns, for a column of that name that something else wrote,
    for scores of other rows, and if a row has several scores.
    """
    try:
        target = open_lance(dataset)
        with connect(scores) as connection:
            wanted = _wanted(connection, columns)
            _check_names(target, dataset, wanted)
            progress.say("comparing rows")
            has_uids = "uid" in target.schema.names and _is_text(target.schema.field("uid").type)
            _number_rows(connection, target, dataset, scores, has_uids)
            scored = _check_matches(connection, dataset)
            progress.say("writing columns")
            _drop(target, [name for name in target.schema.names if name.startswith(_UNFINISHED)])
            target.add_columns(_values(connection, wanted, target.count_rows()))
            # Old scores are dropped once the new ones exist: renaming takes no time.
            _drop(target, [name for name in map(_written, wanted) if name in target.schema.names])
            target.alter_columns(
                *({"path": f"{_UNFINISHED}{name}", "name": _written(name)} for name in wanted)
            )
    except duckdb.Error as error:
        raise InputError(f"the scores cannot be read: {first_line(error)}") from error
    except (ShardError, OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{dataset} cannot be written: {one_line(error)}") from error
    return AnnotatedRows(target.count_rows(), scored, tuple(wanted), target.version)


def _drop(target: Any, names: list[str]) -> None:
    if names:
        target.drop_columns(names)


def _written(column: str) -> str:
    return f"{SCORE_PREFIX}{column}"


def _wanted(connection: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> list[str]:
    existing = columns_of(connection, "scores")
    for name in columns:
        if name not in existing:
            raise InputError(f"the scores have no column {name}; they have {', '.join(existing)}")
    return list(dict.fromkeys(columns)) or [name for name in USUAL if name in existing]


def _check_names(target: Any, dataset: str, columns: Sequence[str]) -> None:
    """Raise `InputError` if `annotate` did not write an existing column of a name to be written."""
    for field in target.schema:
        if field.name in map(_written, columns) and _MARK.items() - (field.metadata or {}).items():
            raise InputError(
                f"{dataset} has a column {field.name} that `ncclean annotate` did not write: "
                "rename or drop it first"
            )


def _is_text(kind: pa.DataType) -> bool:
    """Check whether values of a type are uids: types written as text; lists and structs are not."""
    return not pa.types.is_nested(kind) and not pa.types.is_binary(kind)


def _number_rows(
    connection: duckdb.DuckDBPyConnection,
    target: Any,
    dataset: str,
    scores: Sequence[str],
    has_uids: bool,
) -> None:
    """Create `matched`: a row's position in the data set, and the position of its scores."""
    connection.execute(
        "CREATE TEMP VIEW numbered AS SELECT *, row_number() OVER () AS place FROM scores"
    )
    connection.execute("CREATE TEMP TABLE uids (position BIGINT, uid VARCHAR)")
    if has_uids:
        rows = pa.RecordBatchReader.from_batches(
            pa.schema([("position", pa.int64()), ("uid", pa.string())]),
            _uids(dataset, target.count_rows()),
        )
        connection.register("rows_of_dataset", rows)
        connection.execute("INSERT INTO uids SELECT * FROM rows_of_dataset WHERE uid <> ''")
    connection.execute(
        "CREATE TEMP TABLE matched AS SELECT u.position, s.place FROM uids u "
        "JOIN numbered s ON u.uid = s.uid"
    )
    ((with_uid,),) = connection.execute("SELECT count(*) FROM uids").fetchall()
    if with_uid == target.count_rows():
        return
    shards = resolve_sources([dataset])
    for path in scores:
        _check_versions(path, shards, dataset)
    units = pa.table(
        {
            "shard": [shard.name for shard in shards],
            # Rows of embeddings count from the start of the data set, not of the shard.
            "first": [
                shard.rows[0] if shard.rows and shard.layout not in LAYOUTS else 0
                for shard in shards
            ],
            "last": [shard.rows[1] if shard.rows else 0 for shard in shards],
        }
    )
    connection.register("units", units)
    connection.execute(
        "INSERT INTO matched SELECT u.first + s.row AS position, s.place "
        "FROM numbered s JOIN units u ON s.shard = u.shard WHERE u.first + s.row < u.last "
        "AND u.first + s.row NOT IN (SELECT position FROM uids)"
    )


def _check_versions(scores: str, shards: Sequence[ShardRef], dataset: str) -> None:
    """Raise `InputError` if rows changed since they were scored, according to the run's record.

    Without a record beside the scores, this is unknown.
    """
    run = ScoreRun.load(ScoreLayout(stores.location(scores)))
    scored = {} if run is None else {one.name: one.version for one in run.done_shards()}
    for shard in shards:
        if scored.get(shard.name, shard.version) != shard.version:
            raise InputError(
                f"rows of {dataset} have changed since {scores} was written, and have no uid to "
                "tell them by: score them again"
            )


def _uids(dataset: str, count: int) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in lance_batches(dataset, ["uid"], (0, count), _BATCH_ROWS):
        positions = pa.array(range(first, first + len(batch)), pa.int64())
        first += len(batch)
        yield pa.record_batch([positions, batch.column(0).cast(pa.string())], ["position", "uid"])


def _check_matches(connection: duckdb.DuckDBPyConnection, dataset: str) -> int:
    """Count the rows that have scores.

    Raises `InputError` for several of one row, or scores of none.
    """
    ((pairs, rows, used, total),) = connection.execute(
        "SELECT count(*), count(DISTINCT position), count(DISTINCT place), "
        "(SELECT count(*) FROM scores) FROM matched"
    ).fetchall()
    if pairs > rows:
        raise InputError(
            f"{pairs - rows:,} scores are of rows of {dataset} that have one already: take one "
            "caption of each image, or one table"
        )
    if used < total:
        raise InputError(
            f"{total - used:,} of {total:,} scores are of no row of {dataset}: it is another data "
            "set, or its rows have changed since and have no uid"
        )
    return int(rows)


def _values(
    connection: duckdb.DuckDBPyConnection, columns: Sequence[str], rows: int
) -> pa.RecordBatchReader:
    """Yield the columns for all rows in order, sorted on disk."""
    names = ", ".join(
        f"s.{identifier(name)} AS {identifier(_UNFINISHED + name)}" for name in columns
    )
    relation = connection.sql(
        f"SELECT {names} FROM range({rows}) r LEFT JOIN matched m ON m.position = r.range "
        "LEFT JOIN numbered s ON s.place = m.place ORDER BY r.range"
    )
    batches = relation.fetch_record_batch(_BATCH_ROWS)
    schema = pa.schema([field.with_metadata(_MARK) for field in batches.schema])
    return pa.RecordBatchReader.from_batches(
        schema, (pa.record_batch(batch.columns, schema=schema) for batch in batches)
    )
