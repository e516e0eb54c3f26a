"""A file of the score table: the rows of many shards, with their calibrated columns."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ncclean.base import schema, stores
from ncclean.base.atomic import published
from ncclean.data.fingerprints import Fingerprints, agreed, as_metadata
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ResumeError, one_line
from ncclean.scoring.calibration import Calibration, fill_calibrated
from ncclean.storage.earlier_scores import rows_by_column
from ncclean.storage.parts import ROW_GROUP_ROWS, table_writer
from ncclean.storage.tables import ROWS_BY_SHARD

_THREADS = 4
_THREADS_OF_STORES = 16  # mostly waiting


@dataclass(frozen=True)
class ShardRows:
    """The location of the rows of one shard: a part, or a file of a finished table.

    `fingerprints` are of the shards of images as they were scored.
    """

    shard: str
    path: str
    rows: int
    is_part: bool
    fingerprints: Fingerprints

    @property
    def shard_file(self) -> str:
        """The name of the file that version 0.3 made for this shard."""
        return ShardRef(self.shard, "", 0, "").part_name


@dataclass(frozen=True)
class TableFile:
    """A file of a score table to be written, and where the rows of its shards are before."""

    path: str
    shards: tuple[ShardRows, ...]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class _Piece:
    """Rows of one row group of a table, or with `group` None, a whole part."""

    path: str
    group: int | None
    begin: int
    rows: int


def write_table_file(file: TableFile, calibration: Calibration, metadata: dict[str, str]) -> None:
    """Write one file of the table, its shards in order, with the metadata of the run.

    Raises `InputError` if rows are missing, or not as many as were scored.
    """
    filled = read_rows(file.shards, lambda rows: fill_calibrated(rows, calibration))
    tables = _row_groups(filled)
    first = next(tables, None)
    if first is None:
        first = _schema(file.shards).empty_table()
    rows = {one.shard: one.rows for one in file.shards}
    metadata = metadata | {ROWS_BY_SHARD: json.dumps(rows)}
    metadata |= as_metadata(agreed(one.fingerprints for one in file.shards))
    place = stores.location(file.path)
    with published(place) as aside, table_writer(aside, first.schema, metadata) as writer:
        for table in itertools.chain([first], tables):
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)


def read_rows(
    shards: Sequence[ShardRows], prepare: Callable[[pa.Table], pa.Table]
) -> Iterator[pa.Table]:
    """Yield the rows of shards in order, reading and preparing a few pieces ahead."""
    is_remote = any(stores.is_url(one.path) for one in shards)
    threads = _THREADS_OF_STORES if is_remote else _THREADS
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[pa.Table]] = deque()
        for piece in _pieces(shards):
            ahead.append(pool.submit(lambda one: prepare(_read(one)), piece))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join small pieces so that row groups hold about `ROW_GROUP_ROWS` rows."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += len(table)
        if rows >= ROW_GROUP_ROWS:
            yield pa.concat_tables(held)
            held, rows = [], 0
    if held:
        yield pa.concat_tables(held)


def _pieces(shards: Sequence[ShardRows]) -> Iterator[_Piece]:
    """Yield the places of shards' rows, joining consecutive ones of one row group."""
    last: _Piece | None = None
    tables: dict[str, _Rows] = {}
    for one in shards:
        if not one.rows:
            continue
        if one.is_part:
            pieces = [_Piece(one.path, None, 0, one.rows)]
        else:
            table = tables.get(one.path) or tables.setdefault(one.path, _Rows.of(one))
            pieces = table.pieces(one)
        for piece in pieces:
            if last is not None and _follows(last, piece):
                last = _Piece(last.path, last.group, last.begin, last.rows + piece.rows)
                continue
            if last is not None:
                yield last
            last = piece
    if last is not None:
        yield last


def _follows(one: _Piece, other: _Piece) -> bool:
    return (
        one.group is not None
        and (one.path, one.group) == (other.path, other.group)
        and one.begin + one.rows == other.begin
    )


@dataclass(frozen=True)
class _Rows:
    """The places of each shard's rows in a table: the first and one past the last."""

    spans: dict[str, tuple[int, int]]
    ends: np.ndarray  # of its row groups

    @classmethod
    def of(cls, one: ShardRows) -> _Rows:
        with _opened(one) as file:
            stated = (file.schema_arrow.metadata or {}).get(ROWS_BY_SHARD.encode())
            groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
            if stated is not None:
                rows = json.loads(stated)
            elif one.path.endswith(f"/{one.shard_file}"):
                rows = {one.shard: sum(groups)}
            else:
                rows = rows_by_column(file)
        ends = itertools.accumulate(rows.values())
        spans = {name: (end - rows[name], end) for name, end in zip(rows, ends, strict=True)}
        return cls(spans, np.cumsum(groups))

    def pieces(self, one: ShardRows) -> list[_Piece]:
        begin, end = self.spans.get(one.shard, (0, 0))
        _check_count(one.path, one.shard, end - begin, one.rows)
        pieces = []
        while begin < end:
            group = int(np.searchsorted(self.ends, begin, "right"))
            first = int(self.ends[group - 1]) if group else 0
            stop = min(end, int(self.ends[group]))
            pieces.append(_Piece(one.path, group, begin - first, stop - begin))
            begin = stop
        return pieces


def _read(piece: _Piece) -> pa.Table:
    place = stores.location(piece.path)
    if piece.group is None:
        source: Any = str(place)
        if stores.is_url(place):
            source = pa.BufferReader(stores.read_files([place])[0])  # with one request
        with pq.ParquetFile(source) as file:
            table = file.read(use_threads=False)
        _check_count(piece.path, place.name, len(table), piece.rows)
        return schema.as_scores(table)
    with _damaged(piece.path), stores.open_parquet(place) as file:
        table = file.read_row_group(piece.group, use_threads=False)
    return schema.as_scores(table).slice(piece.begin, piece.rows)


def _check_count(path: str, shard: str, stored: int, rows: int) -> None:
    if stored != rows:
        raise InputError(
            f"{path} has {stored:,} rows of shard {shard}, and {rows:,} were scored; use "
            "--overwrite to score again"
        )


def _schema(shards: Sequence[ShardRows]) -> pa.Schema:
    """Return the Arrow schema of an empty table."""
    for one in shards:
        with _opened(one) as file:
            return schema.run_schema(file.schema_arrow)
    return schema.SCORES


def _opened(one: ShardRows) -> pq.ParquetFile:
    place = stores.location(one.path)
    if not stores.is_file(place):
        raise ResumeError(
            f"{place} is gone, and so are its parts", "; use --overwrite to score again"
        )
    with _damaged(one.path):
        return stores.open_parquet(place)


@contextlib.contextmanager
def _damaged(path: str) -> Iterator[None]:
    """Turn errors while reading a truncated or changed table into an `InputError`."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(
            f"{path} is damaged ({one_line(error)}); use --overwrite to score again"
        ) from error
