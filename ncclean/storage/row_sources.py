"""Finds the rows of each shard: in its part, or in the final table once the part is gone."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from upath import UPath

from ncclean import schema, stores
from ncclean.data.shards import ShardRef
from ncclean.data.sources import are_embeddings
from ncclean.errors import InputError
from ncclean.storage.layout import ScoreLayout
from ncclean.stores import open_parquet

T = TypeVar("T")

_ROWS_BY_SHARD = "rows_by_shard"
_THREADS = 4
_AHEAD = 2 * _THREADS


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one row group, all of one shard."""

    path: UPath
    group: int
    begin: int
    rows: int


class RowSources:
    """Finds the rows of shards that are done; `shards` are those that will be asked for.

    A part is newer than the final table, so it goes first: parts are removed when a table with
    their rows is in place.
    """

    def __init__(self, layout: ScoreLayout, shards: Sequence[ShardRef]) -> None:
        self._layout = layout
        parts = stores.present_files(map(layout.part, shards))
        self._parts = {part.name for part in parts}
        self._in_table: dict[str, list[Piece]] | None = None

    def pieces(self, shard: ShardRef, rows: int) -> list[Piece]:
        """Pieces of a shard's rows, in order. Raises `InputError` if their number is wrong."""
        part = self._layout.part(shard)
        if part.name in self._parts:
            pieces = _pieces_of_file(part)
        elif not rows:
            pieces = []
        elif self._layout.is_single_file:
            if self._in_table is None:
                self._in_table = _pieces_in_table(existing(self._layout.out))
            pieces = self._in_table.get(shard.name, [])
        else:
            pieces = _pieces_of_file(existing(self._layout.final(shard)))
        stored = sum(piece.rows for piece in pieces)
        if stored != rows:
            raise InputError(
                f"{self._layout.out} has {stored:,} rows of shard {shard.name}, and {rows:,} were "
                "scored; use --overwrite to score again"
            )
        return pieces

    def schema(self, shard: ShardRef) -> pa.Schema:
        """The Arrow schema of a shard's rows, even if there are none."""
        part = self._layout.part(shard)
        final = self._layout.out if self._layout.is_single_file else self._layout.final(shard)
        with open_parquet(part if part.name in self._parts else existing(final)) as file:
            return schema.run_schema(file.schema_arrow)


def existing(final: UPath) -> UPath:
    """Check that a final table whose parts are gone exists. Raises `InputError`."""
    if not stores.ask("read", final, final.is_file):
        raise InputError(f"{final} is gone, and so are its parts; use --overwrite to score again")
    return final


def read_ahead(
    items: Iterable[tuple[T, list[Piece]]], prepare: Callable[[pa.Table], pa.Table]
) -> Iterator[tuple[T, list[pa.Table]]]:
    """Yield the rows of each item, reading a few pieces ahead in threads.

    `prepare` is called with whole row groups. One that holds rows of several shards is read once
    for all of them, as long as they follow closely.
    """
    reads: dict[tuple[str, int], Future[pa.Table]] = {}

    def read(piece: Piece) -> pa.Table:
        with open_parquet(piece.path) as file:
            table = file.read_row_group(piece.group, use_threads=False)
        return prepare(schema.as_scores(table))

    def begin(piece: Piece) -> Future[pa.Table]:
        place = str(piece.path), piece.group
        future = reads.pop(place, None) or pool.submit(read, piece)
        reads[place] = future  # the last one used is the last one to go
        if len(reads) > _AHEAD:
            del reads[next(iter(reads))]
        return future

    def result(
        item: T, pieces: list[Piece], futures: list[Future[pa.Table]]
    ) -> tuple[T, list[pa.Table]]:
        tables = [future.result() for future in futures]
        return item, [t.slice(p.begin, p.rows) for t, p in zip(tables, pieces, strict=True)]

    with ThreadPoolExecutor(_THREADS) as pool:
        ahead: deque[tuple[T, list[Piece], list[Future[pa.Table]]]] = deque()
        waiting = 0
        for item, pieces in items:
            ahead.append((item, pieces, [begin(piece) for piece in pieces]))
            waiting += len(pieces)
            while waiting > _AHEAD:
                waiting -= len(ahead[0][1])
                yield result(*ahead.popleft())
        while ahead:
            yield result(*ahead.popleft())


def _pieces_of_file(path: UPath) -> list[Piece]:
    with open_parquet(path) as file:
        counts = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    return [Piece(path, group, 0, count) for group, count in enumerate(counts) if count]


def rows_by_shard(shards: Sequence[ShardRef], rows: Sequence[int]) -> dict[str, str]:
    """Metadata of a table that holds the shards in this order, each with so many rows.

    Rows of embeddings name the shards of their images, which may be others than those of the run.
    """
    if not are_embeddings(shards):
        return {}
    names = [shard.name for shard in shards]
    return {_ROWS_BY_SHARD: json.dumps(dict(zip(names, rows, strict=True)))}


def _pieces_in_table(path: UPath) -> dict[str, list[Piece]]:
    """The pieces of every shard of a table."""
    with open_parquet(path) as file:
        stated = (file.schema_arrow.metadata or {}).get(_ROWS_BY_SHARD.encode())
        counts = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    if stated is None:
        return _pieces_by_shard(path)
    ends = np.cumsum(counts)
    pieces: dict[str, list[Piece]] = {}
    begin = 0
    for name, rows in json.loads(stated).items():
        end, own = begin + rows, pieces.setdefault(name, [])
        while begin < end:
            group = int(np.searchsorted(ends, begin, "right"))
            here = min(end, int(ends[group])) - begin
            own.append(Piece(path, group, begin - int(ends[group]) + counts[group], here))
            begin += here
    return pieces


def _pieces_by_shard(path: UPath) -> dict[str, list[Piece]]:
    """The same of a table that names them in its `shard` column, which alone is read."""
    pieces: dict[str, list[Piece]] = {}
    with open_parquet(path) as file:
        for group in range(file.num_row_groups):
            column = file.read_row_group(group, columns=["shard"]).column(0).combine_chunks()
            coded = column.dictionary_encode()
            codes, names = coded.indices.to_numpy(), coded.dictionary.to_pylist()
            begins = np.flatnonzero(np.diff(codes, prepend=-1))
            ends = np.append(begins[1:], len(codes))
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                piece = Piece(path, group, begin, end - begin)
                pieces.setdefault(names[codes[begin]], []).append(piece)
    return pieces
