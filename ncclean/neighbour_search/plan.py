"""Estimate the cost of a neighbour search from a speed measured on its first block."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from ncclean.base.config import TaskOptions
from ncclean.base.progress import SILENT, Progress
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.errors import InputError
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.corpus import caption_digests, vector_digests
from ncclean.neighbour_search.inverted_lists import NearestHeap, likely_nprobe, task_rows
from ncclean.neighbour_search.near_duplicates import GROUPING_EFFORT
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.run import DRIVER_BYTES, task_bytes
from ncclean.neighbour_search.training import is_exact, lists_of
from ncclean.runners.process_runner import clock_share, processes_worth

_QUERIES, _LEAST_SECONDS = 1024, 0.2  # of the measurement
_PASSES = 3  # over the embeddings: to read, to sample, to write them by list
_BLOCK_TASKS, _GROUP_TASKS = 3, 10
_SAMPLED = 6000  # comparisons of a pair: two samples of each side, and whitened ones
_FEW_LISTS = 6  # visited by a query at least
_ROW_BYTES = 60  # of the table, without ids that compress
_FACTS = 300  # bytes of digests, classes, groups and counts of a pair, in files


@dataclass(frozen=True)
class NeighboursPlan:
    """The estimated size and hours of a neighbour search, for `--dry-run`.

    `processor_hours` are of one CPU core, `hours` of `workers` with a task each. The number of
    lists needed for the recall is known only after training: `*_low` assumes the fewest that are
    ever visited, the others more than corpora have needed so far, out of a possible 256. `tasks`
    are those of all stages.
    """

    shards: int
    bytes: int
    pairs: int
    dim: int
    index: str
    lists: int
    blocks: int
    tasks: int
    bytes_read: int
    working_bytes: int
    bytes_written: int
    task_bytes: int
    memory_bytes: int
    comparisons_per_second: float
    processor_hours_low: float
    processor_hours: float
    workers: int
    hours_low: float
    hours: float


def plan_search(
    embeddings: Sequence[str],
    *,
    keys: tuple[str, str] | None = None,
    options: NeighbourOptions | None = None,
    tasks: TaskOptions | None = None,
    memory_limit: int | None = None,
    progress: Progress = SILENT,
) -> NeighboursPlan:
    """Estimate hours, bytes and memory of a neighbour search.

    Raises `InputError` for unusable embeddings.
    """
    options, tasks = options or NeighbourOptions(), tasks or TaskOptions()
    progress.say("reading embeddings")
    shards = resolve_embeddings(embeddings)
    blocks = embedded_blocks(shards, keys)
    size, dim, k = sum(shard.size for shard in shards), blocks[0].dim, options.k
    progress.say("measuring the speed")
    begin = time.process_time()
    first = blocks[0].read()
    vector_digests(first.image), vector_digests(first.text)
    caption_digests(first.facts.column("text").to_pylist())
    reading = time.process_time() - begin
    if not len(first.image):
        raise InputError(f"{blocks[0].shards[0].url} holds no usable pair")
    first_bytes = sum(shard.size for shard in blocks[0].shards)
    pairs = round(len(first.image) * size / max(first_bytes, 1))
    exact = is_exact(options, pairs)
    lists = lists_of(pairs, exact)
    members = pairs / lists
    processes = processes_worth(tasks.workers, shards)
    room = task_bytes(memory_limit, tasks, processes)
    most = lists if exact else likely_nprobe(lists)
    groups = len(task_rows(pairs, dim, k, most, room))
    with threadpool_limits(1):
        speed = _comparisons_per_second(first.image, max(round(members), 1), k)

    def seconds(nprobe: int) -> float:
        # All lists twice within and twice across, and near-duplicates; one across if exact.
        visited = 5 * lists if exact else 4 * min(nprobe, lists) + 2 * min(GROUPING_EFFORT, lists)
        comparisons = _SAMPLED + 5 * lists + visited * members
        return _PASSES * reading * size / max(first_bytes, 1) + pairs * comparisons / speed

    low, high = (round(seconds(nprobe) / 3600, 6) for nprobe in (_FEW_LISTS, most))
    clock = clock_share(groups, processes)
    return NeighboursPlan(
        shards=len(shards),
        bytes=size,
        pairs=pairs,
        dim=dim,
        index="flat" if exact else "ivf",
        lists=lists,
        blocks=len(blocks),
        tasks=_BLOCK_TASKS * len(blocks) + _GROUP_TASKS * groups,
        bytes_read=_PASSES * size,
        working_bytes=pairs * (8 * dim + 32 * k + _FACTS),
        bytes_written=pairs * _ROW_BYTES,
        task_bytes=room,
        memory_bytes=processes * room + DRIVER_BYTES,
        comparisons_per_second=round(speed),
        processor_hours_low=low,
        processor_hours=high,
        workers=min(processes, groups),
        hours_low=round(low * clock, 6),
        hours=round(high * clock, 6),
    )


def _comparisons_per_second(vectors: np.ndarray, members: int, k: int) -> float:
    """Measure a core's comparisons per second, one list after another."""
    rng = np.random.default_rng(0)
    queries, listed = (
        vectors[rng.integers(0, len(vectors), count)].astype(np.float32)
        for count in (_QUERIES, members)
    )
    heap = NearestHeap(queries, k)
    heap.add(listed, np.arange(members))  # prepare libraries and memory
    begin, compared = time.process_time(), 0
    while (used := time.process_time() - begin) < _LEAST_SECONDS:
        heap.add(listed, np.arange(members))
        compared += _QUERIES * members
    return compared / used
