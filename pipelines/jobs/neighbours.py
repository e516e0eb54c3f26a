"""The search for neighbours over a whole corpus of embeddings."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from upath import UPath

import ncclean
from ncclean import stores
from ncclean.atomic import remove_leftovers
from ncclean.config import parse_keys, parse_memory
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.execution.processes import processes_worth
from ncclean.execution.tasks import open_runner
from ncclean.neighbours.search import find_neighbours
from ncclean.neighbours.sources import embedded_blocks, read_reference
from ncclean.neighbours.summary import NeighboursSummary, neighbour_metadata, summarize
from ncclean.neighbours.table import write_neighbours
from ncclean.options import total_memory
from ncclean.output_mark import check_free
from ncclean.storage.array_files import ArrayFolder
from ncclean.storage.run_record import RunRecord
from ncclean.stores import absolute

from ..neighbours import Neighbours
from ..progress import Progress

PAIR_BYTES = 250  # of all pairs, held beside what the tasks take
_LEAST_TASK_BYTES = 64 << 20
_WRITING = "writing"


def find_all(command: Neighbours, progress: Progress) -> NeighboursSummary:
    """Search the whole corpus and write one row per pair to `command.out`.

    An interrupted search goes on in the working folder beside `out`, which is removed at the end.
    Raises `InputError` for embeddings that cannot be used, or if the output is there already.
    """
    begin = time.perf_counter()
    out = stores.location(command.out)
    if not _is_being_written(out, command):  # else a table there is this search's own
        check_free([command.out], command.name, command.overwrite)
    _check_writable(out)
    tasks = 0

    def start(text: str, total: int) -> None:
        nonlocal tasks
        tasks = total
        progress.say(f"{text}, {total:,} tasks" if total else text)

    progress.say("reading embeddings")
    keys = parse_keys(command.embedding_keys)
    shards = resolve_embeddings(command.embeddings)
    blocks = embedded_blocks(shards, keys)
    reference, uids = None, None
    if command.reference:
        progress.say("reading the reference")
        reference, uids = read_reference(command.reference, keys, blocks[0].dim)
    processes = processes_worth(command.tasks.workers, shards)
    with (
        _working_folder(command, out, shards) as (work, record),
        open_runner(command.tasks, processes) as runner,
    ):
        pairs, neighbours = find_neighbours(
            blocks,
            command.options,
            work,
            runner,
            memory_bytes=task_bytes(command, shards, blocks[0].dim, processes),
            begin=start,
            tick=lambda done: progress.advance(done, tasks, "tasks"),
            reference=reference,
        )
        images = len(reference) if reference is not None else 0
        seconds = time.perf_counter() - begin
        summary = summarize(pairs, neighbours, command.out, seconds, images)
        progress.say("writing")
        metadata = neighbour_metadata(command.options, summary)
        record.append(_WRITING)  # from here on a table at `out` is this search's own
        record.flush()
        write_neighbours(out, pairs, neighbours, metadata, uids)
        remove_leftovers(out.parent, {out.name})
        runner.everywhere(work.forget)
    return summary


def task_bytes(command: Neighbours, shards: Sequence[ShardRef], dim: int, processes: int) -> int:
    """What each of the tasks that run at a time may take."""
    limit = parse_memory(command.memory_limit)
    if command.tasks.engine == "ray" and limit is not None:
        return limit
    pairs = sum(shard.size for shard in shards) // (4 * dim)
    left = (limit or total_memory() // 2) - PAIR_BYTES * pairs
    return max(left // processes, _LEAST_TASK_BYTES)


@contextlib.contextmanager
def _working_folder(
    command: Neighbours, out: UPath, shards: Sequence[ShardRef]
) -> Iterator[tuple[ArrayFolder, RunRecord]]:
    """Where the search keeps what it has done; removed when the body ends without an error.

    Raises `ResumeError` if another search was interrupted there.
    """
    record = _record(out)
    folder = record.parent
    place = absolute(str(folder))
    work = ArrayFolder(place)

    def listed(identity: object) -> Iterator[UPath]:
        yield from map(work.path, sorted(work.names()))

    identity = _identity(command, shards)
    if command.overwrite:
        RunRecord.clear(record, command.name, base=out, files=listed)
    with RunRecord.open(record, command.name, identity, base=out) as opened:
        yield ArrayFolder(place, _run_name(opened)), opened
    RunRecord.clear(record, command.name, base=out, files=listed, says=False)
    work.remove_leftovers()
    if not stores.is_url(folder):
        with contextlib.suppress(OSError):  # a file of someone else's is in it
            os.rmdir(str(folder))


def _record(out: UPath) -> UPath:
    return out.with_name(out.name + ".work") / "search.jsonl"


def _is_being_written(out: UPath, command: Neighbours) -> bool:
    """Whether an earlier start was interrupted after it had begun to write the table."""
    earlier = RunRecord.load(_record(out), command.name, read_only=True)
    return earlier is not None and any(entry["kind"] == _WRITING for entry in earlier.entries)


def _run_name(record: RunRecord) -> str:
    """A name that the run has as long as it is resumed."""
    for entry in record.entries:
        if entry["kind"] == "name":
            return str(entry["value"])
    name = uuid.uuid4().hex
    record.append("name", value=name)
    return name


def _identity(command: Neighbours, shards: Sequence[ShardRef]) -> dict[str, Any]:
    return {
        "embeddings": [shard.to_json() for shard in shards],
        "embedding_keys": command.embedding_keys,
        "reference": list(command.reference),
        "options": asdict(command.options),
        "version": ncclean.__version__,
    }


def _check_writable(out: UPath) -> None:
    """Hours of searching must not end with a path that cannot be written."""
    if stores.is_url(out):
        return
    stores.ask("write", out, out.parent.mkdir, parents=True, exist_ok=True)
    if not os.access(str(out.parent), os.W_OK):
        raise InputError(f"cannot write {out}: the folder {out.parent} is not writable")
