"""Turn parts into the table: fix the shift, fit the null, fill the calibrated columns.

Needs no model and no images, and can be repeated with another shift or weight. The rows of a shard
are those of its part or, once the part is gone, those of the table itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import remove_leftovers
from ncclean.base.progress import SILENT, Progress
from ncclean.scoring.calibration import Calibration
from ncclean.storage.calibration import final_metadata
from ncclean.storage.made_files import Leftovers, remove_with_leftovers
from ncclean.storage.parts import embedding_files
from ncclean.storage.score_run import ScoreRun
from ncclean.storage.table_file import ShardRows, TableFile, write_table_file

# Calls a function with the arguments of each task, here or elsewhere.
RunTasks = Callable[[Callable[..., None], Iterable[tuple[Any, ...]]], Iterable[object]]

# A table file's size in memory: 64 to 512 MB of Parquet.
FILE_BYTES = 512 << 20
_FILES_AT_ONCE = 4  # in this process


def finalize(
    run: ScoreRun,
    calibration: Calibration,
    run_tasks: RunTasks | None = None,
    merges: Sequence[ScoreRun] = (),
    progress: Progress = SILENT,
) -> None:
    """Write the final score table from the shards' parts, each file whole, and remove the parts.

    A part holds the rows of one shard. Parts are removed once every file, and the list of shards
    with their records, is in place, so it can be killed at any point and rerun. `run_tasks` writes
    the files, by default several at once on this machine. Shards whose rows the run lacks are in
    one of the runs that it `merges`.
    """
    run.check()
    metadata = final_metadata(calibration, run)
    files = table_files_of(run, merges)
    left = _leftovers(run, files)
    left.write(run.layout.finalizing)
    run.forget_dropped()  # before removing their rows: returning ones are scored again
    tasks = ((file, calibration, metadata) for file in files)
    run_tasks = run_tasks or (itertools.starmap if len(files) == 1 else _in_threads)
    for done, _ in enumerate(run_tasks(write_table_file, tasks), start=1):
        run.check()
        if len(files) > 1:
            progress.advance(done, len(files), "files")
    for file in files:
        for rows in file.shards:
            run.listed.shards[rows.shard].file = file.name
    run.write_list(itertools.chain(*(one.records() for one in (run, *merges))))
    _remove(run, left, {file.name for file in files})


def _in_threads(function: Callable[..., None], tasks: Iterable[tuple[Any, ...]]) -> Iterator[None]:
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        yield from pool.map(lambda task: function(*task), tasks)


def _leftovers(run: ScoreRun, files: Sequence[TableFile]) -> Leftovers:
    """Collect files made obsolete by the new table, and those of a killed run."""
    shards = run.listed.shards.values()
    names = [one.file for one in shards if one.file] + [file.name for file in files]
    dropped = [one.number for one in shards if one.position is None]
    return Leftovers(names, dropped) + Leftovers.read(run.layout.finalizing)


def _remove(run: ScoreRun, left: Leftovers, table: set[str]) -> None:
    """Remove all files except those of the table now, and then the list of them."""
    layout, folder = run.layout, run.identity.options.get("embeddings")
    files = layout.own_files(name for name in left.table if name not in table)
    files += [layout.part(one.ref) for one in run.listed.shards.values()]
    if folder is not None:
        listed = {one.number for one in run.listed.shards.values()}
        for number in set(left.numbers) - listed:  # a shard to be dropped may be back
            place = layout.embeddings(folder)
            files += embedding_files(place, f"{number:0{run.digits}d}").values()
    remove_with_leftovers(files)
    remove_leftovers(layout.table_file("x").parent, table)
    remove_leftovers(layout.work, {layout.shard_list.name, layout.finalizing.name})
    stores.remove_files([layout.finalizing])


def table_files_of(run: ScoreRun, merges: Sequence[ScoreRun] = ()) -> list[TableFile]:
    """Return the planned table files, about equal and of at most `FILE_BYTES` in memory."""
    layout, place = run.layout, run.layout.out
    sources = {name: rows for one in (*merges, run) for name, rows in _rows(one)}
    shards = run.done_shards()
    if layout.is_single_file:
        return [TableFile(_absolute(place), tuple(sources[shard.name] for shard in shards))]
    total = sum(run.done[shard.name].bytes for shard in shards)
    count = max(-(-total // FILE_BYTES), 1)
    groups: list[list[ShardRows]] = [[]]
    size = 0
    for shard in shards:
        if len(groups) < count and size * count >= total * len(groups):
            groups.append([])
        groups[-1].append(sources[shard.name])
        size += run.done[shard.name].bytes
    names = (
        f"part-{number:05d}-{_digest(run, group)}.parquet" for number, group in enumerate(groups)
    )
    return [
        TableFile(_absolute(place / name), tuple(group))
        for name, group in zip(names, groups, strict=True)
    ]


def _rows(run: ScoreRun) -> Iterator[tuple[str, ShardRows]]:
    """Yield where the rows of the run's shards are."""
    parts = run.parts()
    for name, stats in run.done.items():
        listed = run.listed.shards[name]
        size, version = run.scored_versions[name]
        scored = stats.sources
        if run.identity.has_images:
            ref = dataclasses.replace(listed.ref, size=size, version=version)
            scored = {name: ref.fingerprint}
        if name in parts:
            yield name, ShardRows(name, _absolute(parts[name]), stats.rows, True, scored)
        elif (file := listed.file) is not None:
            table = run.layout.table_file(file)
            yield name, ShardRows(name, _absolute(table), stats.rows, False, scored)


def _digest(run: ScoreRun, shards: Sequence[ShardRows]) -> str:
    """Name a group of shards, so that no file replaces one with rows of others."""
    versions = [(one.shard, *run.scored_versions[one.shard], one.rows) for one in shards]
    return hashlib.blake2b(repr(versions).encode(), digest_size=4).hexdigest()


def _absolute(path: UPath) -> str:
    return stores.absolute(str(path))
