"""Search for neighbours over a whole corpus of embeddings."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from upath import UPath

import ncclean
from ncclean.base import stores
from ncclean.base.atomic import remove_leftovers
from ncclean.base.config import TaskOptions
from ncclean.base.options import total_memory
from ncclean.base.output_mark import check_free
from ncclean.base.progress import SILENT, Progress
from ncclean.base.stores import absolute
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.errors import InputError
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.reference import read_reference
from ncclean.neighbour_search.search import find_neighbours
from ncclean.neighbour_search.table import (
    NeighboursSummary,
    neighbour_metadata,
    summarize,
    write_neighbours,
)
from ncclean.runners.opened import open_runner
from ncclean.runners.process_runner import processes_worth
from ncclean.storage.array_files import ArrayFolder
from ncclean.storage.run_record import RUN, RunRecord

# Memory of this process besides the tasks, for any number of pairs: libraries, chunks, and DuckDB's
# in-memory sorting.
DRIVER_BYTES = 320 << 20
_LEAST_TASK_BYTES = 64 << 20
_COMMAND, _WRITING = "neighbours", "writing"


def run_search(
    embeddings: Sequence[str],
    out: str,
    *,
    keys: tuple[str, str] | None = None,
    reference: Sequence[str] = (),
    options: NeighbourOptions | None = None,
    tasks: TaskOptions | None = None,
    memory_limit: int | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> NeighboursSummary:
    """Search a corpus of embeddings and write one row per pair to the Parquet file `out`.

    `keys` are the names of the image and caption vectors, `reference` embeddings of other images to
    compare with, `memory_limit` bytes. An interrupted search resumes from the working folder beside
    `out`, which is removed at the end. Raises `InputError` for unusable embeddings, or if the
    output exists.
    """
    begin = time.perf_counter()
    options, tasks = options or NeighbourOptions(), tasks or TaskOptions()
    path = stores.location(out)
    if not _is_being_written(path):  # otherwise a table there is this search's own
        check_free([out], _COMMAND, overwrite)
    _check_writable(path)
    progress.say("reading embeddings")
    shards = resolve_embeddings(embeddings)
    blocks = embedded_blocks(shards, keys)
    vectors, uids, digest = None, None, ""
    if reference:
        progress.say("reading the reference")
        vectors, uids = read_reference(reference, keys, blocks[0].dim)
        digest = hashlib.blake2b(np.ascontiguousarray(vectors).data, digest_size=16).hexdigest()
    processes = processes_worth(tasks.workers, shards)
    identity = {
        "embeddings": [shard.to_json() for shard in shards],
        "embedding_keys": keys,
        "reference": [{"name": source, "digest": digest} for source in reference],
        "options": asdict(options),
        "version": ncclean.__version__,
    }
    with (
        _working_folder(path, identity, overwrite) as (work, record),
        open_runner(tasks, processes) as runner,
    ):
        neighbours = find_neighbours(
            blocks,
            options,
            work,
            runner,
            memory_bytes=task_bytes(memory_limit, tasks, processes),
            progress=progress,
            reference=vectors,
        )
        summary = summarize(neighbours, out, time.perf_counter() - begin)
        progress.say("writing")
        metadata = neighbour_metadata(options, summary)
        record.append(_WRITING)  # from here on a table at `out` is this search's own
        write_neighbours(path, neighbours, metadata, uids)
        remove_leftovers(path.parent, {path.name})
        runner.everywhere(work.forget)
    return summary


def task_bytes(limit: int | None, tasks: TaskOptions, processes: int) -> int:
    """Return the memory in bytes for each of the concurrent tasks."""
    if tasks.engine == "ray" and limit is not None:
        return limit
    left = (limit or total_memory() // 2) - DRIVER_BYTES
    return max(left // processes, _LEAST_TASK_BYTES)


@contextlib.contextmanager
def _working_folder(
    out: UPath, identity: dict[str, Any], overwrite: bool
) -> Iterator[tuple[ArrayFolder, RunRecord]]:
    """Open the working folder of the search; remove it when the body ends without an error.

    Raises `ResumeError` if another search was interrupted there.
    """
    record = _record(out)
    folder = record.parent
    place = absolute(str(folder))
    work = ArrayFolder(place)

    def listed(identity: object) -> Iterator[UPath]:
        yield from map(work.path, sorted(work.names()))

    if overwrite:
        RunRecord.clear(record, _COMMAND, base=out, files=listed)
    with RunRecord.open(record, _COMMAND, identity, base=out) as opened:
        yield ArrayFolder(place, _run_name(opened)), opened
    RunRecord.clear(record, _COMMAND, base=out, files=listed, says=False)
    work.remove_leftovers()
    if not stores.is_url(folder):
        with contextlib.suppress(OSError):  # it has someone else's file
            os.rmdir(str(folder))


def _record(out: UPath) -> UPath:
    return out.with_name(out.name + ".work") / RUN


def _is_being_written(out: UPath) -> bool:
    """Check whether an earlier start was interrupted while writing the table."""
    earlier = RunRecord.load(_record(out), _COMMAND)
    return earlier is not None and any(entry["kind"] == _WRITING for entry in earlier.entries)


def _run_name(record: RunRecord) -> str:
    """Return a name that the run keeps when resumed."""
    names = [entry["value"] for entry in record.entries if entry["kind"] == "name"]
    if not names:
        names = [uuid.uuid4().hex]
        record.append("name", value=names[0])
    return str(names[0])


def _check_writable(out: UPath) -> None:
    """Raise an error now, so that hours of searching do not end with an unwritable path."""
    if stores.is_url(out):
        return
    stores.ask("write", out, out.parent.mkdir, parents=True, exist_ok=True)
    if not os.access(str(out.parent), os.W_OK):
        raise InputError(f"cannot write {out}: the folder {out.parent} is not writable")
