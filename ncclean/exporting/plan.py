"""Plan an export: which samples of input shards go to which exported shards, and how often."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import numpy as np

from ncclean.base import stores
from ncclean.data.selection import (
    CAPTION_NUMBER,
    CAPTION_RANK,
    COLUMNS,
    MENDED,
    not_captions,
    not_weights,
)
from ncclean.data.shards import ShardRef, match_shards
from ncclean.errors import InputError
from ncclean.selection.fixed_selection import check_fixes, fixed_selection
from ncclean.storage.catalog import columns_of, connect

_LEAST_DIGITS = 5  # of the number in a shard's name, as in img2dataset
# Of all members of a sample, in an uncompressed tar, and of its image.
PLACE = ("sample_offset", "sample_size", "image_size")
# SQL: how often a row of `open_selection` was drawn.
WRITTEN = "coalesce(len(list_filter(captions, lambda one: one = captions[1])), 1)"


@dataclass(frozen=True)
class Segment:
    """Selected samples of an input shard: from the number `first`, `count` of them with copies."""

    shard: ShardRef
    name: str  # name of the shard in the selection
    first: int
    count: int


@dataclass(frozen=True)
class ExportTask:
    """The task of writing one shard of an export: its number, sources, and group of files.

    `file` is the path to write, empty for image files.
    """

    number: int
    segments: tuple[Segment, ...]
    group: str = ""
    file: str = ""

    def absolute(self) -> ExportTask:
        """Return the task with absolute paths, for a worker with another working folder."""
        segments = (replace(one, shard=one.shard.absolute()) for one in self.segments)
        file = self.file and stores.absolute(self.file)
        return replace(self, segments=tuple(segments), file=file)

    @property
    def samples(self) -> int:
        return sum(segment.count for segment in self.segments)


def plan_selection(
    selection: str,
    shards: Sequence[ShardRef],
    samples_per_shard: int,
    *,
    repeat: bool,
    fixes: str | None = None,
    group_of: Callable[[ShardRef], str] = lambda _: "",
) -> tuple[list[ExportTask], float | None]:
    """Plan the output shards of an export, and the factor of the weights for `--repeat`.

    Shards of different groups, by `group_of`, go to different output shards. Raises `InputError`
    for a selection that cannot be read, or does not fit the shards or `fixes`.
    """
    with contextlib.closing(open_selection(selection, fixes)) as connection:
        if fixes is not None:
            check_fixes(connection, columns_of(connection, "selected"), selection)
        repeats = repeat_scale(connection, selection) if repeat else None
        counts = {name: n for name, n in count_by_shard(connection, repeats).items() if n}
    return plan_export(counts, shards, samples_per_shard, group_of), repeats


def digits_of(tasks: Sequence[ExportTask]) -> int:
    """Return the number of digits in the names of the exported shards."""
    return max(_LEAST_DIGITS, len(str(max(len(tasks) - 1, 0))))


def open_selection(selection: str, fixes: str | None = None) -> duckdb.DuckDBPyConnection:
    """Open a selection as DuckDB's view `scores`, with a row for each image.

    `captions` are the numbers of its captions, the best first; null if there is only one. An image
    drawn several times has as many rows, or repeats the number of its best caption. `mended` are
    the texts that replace its captions, in the same order, null for unchanged ones. `fixes` are
    decisions of `ncclean explain`, which override the selection.

    Raises `InputError` if it lacks a column that `ncclean select` writes.
    """
    tables = {"fixes": [fixes]} if fixes is not None else {}
    connection = connect([selection], view="selected", beside=tables)
    columns = columns_of(connection, "selected")
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise InputError(f"{selection} is not a selection: it has no column {missing[0]}")
    if MENDED in columns:
        (kind,) = connection.execute(
            f"SELECT column_type FROM (DESCRIBE SELECT {MENDED} FROM selected)"
        ).fetchall()[0]
        if kind not in ("VARCHAR", '"NULL"'):
            raise InputError(not_captions(selection, kind))
    is_mended = MENDED in columns or fixes is not None
    mended = f"{MENDED}::VARCHAR" if is_mended else "NULL::VARCHAR"
    source = "selected" if fixes is None else f"({fixed_selection(columns)})"
    sql = f"SELECT *, NULL::SMALLINT[] AS captions, [{mended}] AS mended FROM {source}"
    if CAPTION_NUMBER in columns:
        best = CAPTION_RANK if CAPTION_RANK in columns else CAPTION_NUMBER
        beside = "".join(f"any_value({n}) AS {n}, " for n in PLACE if n in columns and not fixes)
        sql = (
            f"SELECT shard, key, uid, arg_min(weight, {best}) AS weight, "
            f"{beside}"
            f"list({CAPTION_NUMBER} ORDER BY {best}) AS captions, "
            f"list({mended} ORDER BY {best}) AS mended FROM {source} GROUP BY shard, key, uid"
        )
    connection.execute(f"CREATE TEMP VIEW scores AS {sql}")
    return connection


def count_by_shard(connection: duckdb.DuckDBPyConnection, repeats: float | None) -> dict[str, int]:
    """Return the number of samples to export from each input shard, counting copies."""
    if repeats is None:
        rows = connection.execute(
            f"SELECT shard, sum({WRITTEN})::BIGINT FROM scores GROUP BY shard"
        ).fetchall()
        return dict(rows)
    counts: dict[str, int] = {}
    reader: Any = connection.sql("SELECT shard, uid, weight FROM scores").to_arrow_reader(100_000)
    for batch in reader:
        copies = copies_of(batch.column("uid"), batch.column("weight"), repeats)
        names, places = np.unique(np.asarray(batch.column("shard")), return_inverse=True)
        for name, count in zip(names, np.bincount(places, copies), strict=True):
            counts[str(name)] = counts.get(str(name), 0) + int(count)
    return counts


def repeat_scale(connection: duckdb.DuckDBPyConnection, selection: str) -> float:
    """Return the factor that makes the mean weight 1, so that repeating keeps the sample count.

    Raises `InputError` if all weights are 0, or one is negative or not finite.
    """
    rows = connection.execute(
        "SELECT sum(weight), count(*), "
        "coalesce(bool_and(isfinite(weight::DOUBLE) AND weight >= 0), true) FROM scores"
    ).fetchall()
    total, count, are_weights = rows[0]
    if not are_weights:
        raise InputError(not_weights(selection))
    if not total:
        raise InputError("the weights of the selection sum to 0: leave --repeat out")
    return float(count / total)


def copies_of(uids: Any, weights: Any, scale: float) -> np.ndarray:
    """Return (n,) copies of each sample: `scale * weight`, its fraction drawn by the uid.

    The expectation is exact, and the same uid is always rounded the same way.
    """
    wanted = np.asarray(weights, dtype=np.float64) * scale
    draws = np.array([_uniform(uid) for uid in np.asarray(uids)])
    return (np.floor(wanted) + (draws < wanted - np.floor(wanted))).astype(np.int64)


def plan_export(
    counts: dict[str, int],
    shards: Sequence[ShardRef],
    samples_per_shard: int,
    group_of: Callable[[ShardRef], str] = lambda _: "",
) -> list[ExportTask]:
    """Cut the selected samples, in input order, into shards of `samples_per_shard`.

    Each group of input shards is cut separately. Raises `InputError` if the selection names a shard
    that is not among `shards`.
    """
    refs = match_shards(list(counts), shards)
    order = {ref: index for index, ref in enumerate(shards)}
    groups: dict[str, list[str]] = {}
    for name in sorted(refs, key=lambda name: order[refs[name]]):
        groups.setdefault(group_of(refs[name]), []).append(name)
    tasks: list[ExportTask] = []
    for group, names in groups.items():
        segments = (Segment(refs[name], name, 0, counts[name]) for name in names)
        for cut in _cut(segments, samples_per_shard):
            tasks.append(ExportTask(len(tasks), cut, group))
    return tasks


def _cut(segments: Iterator[Segment], samples_per_shard: int) -> Iterator[tuple[Segment, ...]]:
    pending: list[Segment] = []
    room = samples_per_shard
    for segment in segments:
        first, left = segment.first, segment.count
        while left:
            taken = min(left, room)
            pending.append(Segment(segment.shard, segment.name, first, taken))
            first, left, room = first + taken, left - taken, room - taken
            if not room:
                yield tuple(pending)
                pending, room = [], samples_per_shard
    if pending:
        yield tuple(pending)


def _uniform(uid: object) -> float:
    """Return a number in [0, 1) that depends only on the uid."""
    digest = hashlib.blake2b(str(uid).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
