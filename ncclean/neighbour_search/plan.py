"""The cost of a search for neighbours, from a speed measured on its first block."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from ncclean.config import TaskOptions
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.errors import InputError
from ncclean.neighbour_search.block_tasks import MAX_NPROBE, likely_nprobe
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.copies import caption_digests, vector_digests
from ncclean.neighbour_search.knn import QUERY_ROWS, Heaps, heap_keys, nearest_in_list
from ncclean.neighbour_search.list_scanner import ListScanner
from ncclean.neighbour_search.matmul import Matmul, fastest_matmul, load_faiss, take_float32
from ncclean.neighbour_search.near_duplicates import GROUPING_EFFORT
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.run import DRIVER_BYTES, task_bytes
from ncclean.neighbour_search.search import groups_of, row_bytes
from ncclean.neighbour_search.training import is_exact, lists_of
from ncclean.progress import SILENT, Progress
from ncclean.runners.process_runner import clock_share, processes_worth

_KNOWN, _ROUNDS = 2048, 10  # of the measurement
_PASSES = 4  # over the embeddings: to read, sample, assign and write them
_BLOCK_TASKS, _GROUP_TASKS = 5, 19
# In comparisons of two vectors, fitted to searches of one and three million pairs: what a pair
# costs whatever the number of lists (the sample's true neighbours, LEMoN's), how often it is
# compared with all lists, and what a comparison with a member costs, with all that is around it.
_OF_A_PAIR, _OF_LISTS, _OF_MEMBERS = 40_000, 4, 1.5
_ROW_BYTES = 60  # of the table, without ids that compress
_FACTS = 300  # bytes of digests, classes, groups and counts of a pair, in files


@dataclass(frozen=True)
class NeighboursPlan:
    """The estimate of `--dry-run`: the size of a search and its hours.

    Hours are those of a processor's core, `hours` of `workers`, each of which has a task. How
    many lists it takes to reach the recall is known only when they have been learnt: `*_low` is of
    the fewest that are visited in any case, the others of more than corpora have needed so far, of
    256 that are possible. `tasks` are those of all stages.
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
    """Estimate hours, bytes and memory of a neighbour search. Raises `InputError`."""
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
    processes = processes_worth(tasks.workers, shards)
    room = task_bytes(memory_limit, tasks, processes)
    of_a_row = row_bytes(k, min(likely_nprobe(lists), lists), queries=1)
    groups = groups_of(np.full(lists, pairs // lists + 1), of_a_row, room, processes)
    members = round(pairs / lists)
    of_a_task = pairs * min(GROUPING_EFFORT, lists) * members / (len(groups) - 1)
    load_faiss()  # a limit holds for what is loaded
    matmul = fastest_matmul(of_a_task)
    with threadpool_limits(1):
        speed = _comparisons_per_second(first.image, members, k, matmul)
    work = [
        _PASSES * reading * size / max(first_bytes, 1)
        + pairs * _comparisons(nprobe, lists, pairs / lists, exact) / speed
        for nprobe in (GROUPING_EFFORT, likely_nprobe(lists))
    ]
    low, high = (round(seconds / 3600, 6) for seconds in work)
    clock = clock_share(len(groups) - 1, processes)
    return NeighboursPlan(
        shards=len(shards),
        bytes=size,
        pairs=pairs,
        dim=dim,
        index="flat" if exact else "ivf",
        lists=lists,
        blocks=len(blocks),
        tasks=_BLOCK_TASKS * len(blocks) + _GROUP_TASKS * (len(groups) - 1),
        bytes_read=_PASSES * size,
        working_bytes=pairs * (4 * dim + 32 * k + 20 * min(MAX_NPROBE, lists) + _FACTS),
        bytes_written=pairs * _ROW_BYTES,
        task_bytes=room,
        memory_bytes=processes * room + DRIVER_BYTES,
        comparisons_per_second=round(speed),
        processor_hours_low=low,
        processor_hours=high,
        workers=min(processes, len(groups) - 1),
        hours_low=round(low * clock, 6),
        hours=round(high * clock, 6),
    )


def _comparisons(nprobe: int, lists: int, members: float, exact: bool) -> float:
    """The cost of a pair in all searches: two within, two across; one across if `exact`."""
    visited = 3 * lists if exact else 4 * min(nprobe, lists)
    return _OF_A_PAIR + _OF_LISTS * lists + _OF_MEMBERS * visited * members


def _comparisons_per_second(vectors: np.ndarray, members: int, k: int, matmul: Matmul) -> float:
    """Measure the comparisons of a core in a second, once the heaps are filled."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(vectors), QUERY_ROWS + _KNOWN + max(members, 1))
    queries, near, listed = np.split(
        vectors[drawn].astype(np.float32), [QUERY_ROWS, QUERY_ROWS + _KNOWN]
    )
    ids, rows = np.arange(_KNOWN, dtype=np.int32), np.arange(QUERY_ROWS)
    nearest = Heaps(heap_keys(nearest_in_list(queries, near, ids, k, None)))
    products = ListScanner(partial(take_float32, queries.astype(np.float16)), matmul)

    def compare(number: int) -> None:
        first = _KNOWN + number * len(listed)
        ids = np.arange(first, first + len(listed), dtype=np.int32)
        products.set_list(listed)
        nearest.add(rows, products.range_search(rows, nearest.thresholds(rows)), ids)

    compare(0)  # libraries and memory are made ready
    begin = time.process_time()
    for number in range(_ROUNDS):
        compare(1 + number)
    return _ROUNDS * QUERY_ROWS * len(listed) / max(time.process_time() - begin, 1e-6)
