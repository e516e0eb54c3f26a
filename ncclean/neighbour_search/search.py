"""Searches the whole corpus: all results of `ncclean neighbours` about its pairs.

The corpus is read block by block, its vectors are written by list, and lists are searched group by
group. What is held for all pairs at once are a few numbers for each; vectors and neighbours lie in
files. The results depend neither on the memory, nor on how many tasks run at a time, nor where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from ncclean.neighbour_search.better_matches import BetterMatches
from ncclean.neighbour_search.block_tasks import ACROSS, SIDES, WITHIN, Direction, write_lists
from ncclean.neighbour_search.blocks import ArrayBlock, Block
from ncclean.neighbour_search.chunked import add_counts
from ncclean.neighbour_search.columns import (
    better_among_neighbours,
    better_of_all,
    distinct_columns,
    group_sizes,
    lemon_scores,
    pair_groups,
    reference_matches,
)
from ncclean.neighbour_search.corpus import Corpus, read_corpus
from ncclean.neighbour_search.knn import recall_by_value
from ncclean.neighbour_search.near_duplicates import GROUPING_EFFORT, group_side, join_single_images
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.result import THRESHOLDS, CorpusNeighbours, Side
from ncclean.neighbour_search.scratch_arrays import release
from ncclean.neighbour_search.search_tasks import (
    merge_heaps,
    nearest_of,
    search_first_list,
    search_other_lists,
)
from ncclean.neighbour_search.stages import Stages
from ncclean.neighbour_search.training import Assignment, assign, describe, is_exact, learn
from ncclean.neighbour_search.whitening import ROWS_PER_DIMENSION
from ncclean.progress import SILENT, Progress
from ncclean.runners.runner import InProcess, Runner
from ncclean.scratch import scratch_folder
from ncclean.storage.array_files import ArrayFolder

DEFAULT_MEMORY = 4 << 30
_LEAST_TASKS, _TASKS_OF_A_WORKER = 4, 2  # groups of lists, so that none is long without work
# Of a task's memory for what is found of its lists, and for queries. The rest is for libraries.
_OF_LISTS, _OF_QUERIES = 0.25, 0.45
_SMALL = 20_000  # distinct rows that one group holds in any case


def find_neighbours(
    blocks: Sequence[Block],
    options: NeighbourOptions,
    work: ArrayFolder,
    runner: Runner,
    *,
    memory_bytes: int = DEFAULT_MEMORY,
    progress: Progress = SILENT,
    reference: np.ndarray | None = None,
) -> tuple[pa.Table, CorpusNeighbours]:
    """Search the neighbours of every pair; returns the pairs' identifiers and all columns.

    `work` keeps what was done if the search is killed; the same call goes on there. A task takes
    about `memory_bytes`. `reference` (r, d) are images of another corpus to compare with. Raises
    `InputError` for a corpus without a usable pair.
    """
    stages = Stages(work, runner, progress)
    corpus = read_corpus(stages, blocks)
    whiten = options.whiten
    if whiten is None:
        fewest = min(len(one) for one in corpus.distinct.values())
        whiten = fewest >= ROWS_PER_DIMENSION * corpus.dim
    thresholds = {side: THRESHOLDS[side][whiten] for side in SIDES}
    for name, asked in (("image", options.image_threshold), ("text", options.text_threshold)):
        thresholds[name] = thresholds[name] if asked is None else asked
    exact = is_exact(options, len(corpus.own))
    queries = learn(stages, blocks, corpus.distinct, options, whiten=whiten, exact=exact)
    assigned = assign(stages, blocks, queries, options, exact=exact, thresholds=thresholds)
    arguments = [(block, assigned.nprobe, exact) for block in blocks]
    stages.run("writing lists", "lists", write_lists, arguments)
    stages.save("groups", **_groups(corpus, assigned, options.k, memory_bytes, runner.workers))

    joins = whiten and options.image_threshold is None  # single images, by their plain cosines
    for side in SIDES:
        group_side(
            stages,
            corpus,
            side,
            "leaders-image" if joins and side == "image" else f"groups-{side}",
            thresholds[side],
            options.linkage,
            assigned.nprobe[f"{side}-{side}"] if exact else GROUPING_EFFORT,
        )
    k = {one.name: corpus.width(one, options.k) for one in (*WITHIN, *ACROSS)}
    for direction in WITHIN:
        search(stages, blocks, direction, k[direction.name])
    if joins:
        join_single_images(stages, "leaders-image", "groups-image")
    groups = pair_groups(stages, corpus)
    sizes = group_sizes(stages, groups)
    lemon = lemon_scores(stages, corpus, options.k)
    recalls = {one.name: recall(stages, one, assigned, queries) for one in WITHIN}
    if exact:
        better = better_of_all(stages, blocks, corpus)
    else:
        counts = []
        for direction in ACROSS:
            search(stages, blocks, direction, k[direction.name])
            recalls[direction.name] = recall(stages, direction, assigned, queries)
            counts.append(better_among_neighbours(stages, corpus, direction))
        better = BetterMatches(*counts)
    columns = distinct_columns(stages, corpus, assigned.clusters)
    lists = {side: len(stages.work.load("learnt")[f"{side}_lists"]) for side in SIDES}

    def result(here: str, there: str) -> Side:
        within, across = Direction(here, here), Direction(there, here)
        return Side(
            distinct=len(corpus.distinct[here]),
            threshold=thresholds[here],
            group=groups[here],
            sizes=sizes[here],
            members=sizes["images" if here == "image" else here],
            similarity=columns[here],
            index=describe(within, across, assigned.nprobe, lists[here]),
            recall=recalls[within.name],
            across_recall=recalls.get(across.name, 1.0),
            duplicate_recall=assigned.duplicate_recall[here],
        )

    neighbours = CorpusNeighbours(
        image=result("image", "text"),
        text=result("text", "image"),
        whiten=whiten,
        is_exact=exact,
        pair_group=groups["pair"],
        pair_sizes=sizes["pair"],
        better=better,
        lemon=lemon,
        cluster=columns["cluster"],
        reference=reference_matches(stages, blocks, corpus, reference, whiten, options),
        left_out=corpus.left_out,
        repeated_uids=corpus.repeated_uids(stages),
    )
    release()  # what tasks in this process have kept
    return corpus.pairs, neighbours


def neighbours_of(
    image: np.ndarray,
    text: np.ndarray,
    captions: Sequence[str | None] | None = None,
    options: NeighbourOptions | None = None,
) -> CorpusNeighbours:
    """Search the neighbours of (n, d) images and captions in memory, in this process."""
    with scratch_folder() as folder:
        _, neighbours = find_neighbours(
            [ArrayBlock(image, text, captions)],
            options or NeighbourOptions(),
            ArrayFolder(str(folder)),
            InProcess(),
        )
    return neighbours


def _groups(
    corpus: Corpus, assigned: Assignment, k: int, memory_bytes: int, workers: int
) -> dict[str, np.ndarray]:
    """Return, by side, where each group of lists begins: as many rows as a task has room for.

    `room` is how many queries it has room for.
    """
    groups = {
        side: groups_of(
            _sizes_of_lists(lists),
            row_bytes(k, max(assigned.nprobes(side)), _most_queries(corpus, side)),
            memory_bytes,
            workers,
        )
        for side, lists in assigned.lists.items()
    }
    # Queries in float16, and what is known of the neighbours of each.
    query_bytes = 2 * corpus.dim + 10 * k
    return {**groups, "room": np.array([max(1, int(_OF_QUERIES * memory_bytes) // query_bytes)])}


def _sizes_of_lists(lists: np.ndarray) -> np.ndarray:
    sizes = np.zeros(int(lists.max()) + 1, np.int64)
    add_counts(sizes, lists)
    return sizes


def _most_queries(corpus: Corpus, side: str) -> float:
    """The most queries for each row of a side: 5 of images that have five captions each."""
    return max(len(one) for one in corpus.distinct.values()) / len(corpus.distinct[side])


def row_bytes(k: int, nprobes: int, queries: float) -> int:
    """Bytes of memory that a search task takes for each row of its lists.

    Neighbours as they are found, joined and ordered, and who visits. `queries` is how many of them
    there are for each row.
    """
    return round(queries * (32 * k + 4 * nprobes))


def groups_of(sizes: np.ndarray, of_a_row: int, memory_bytes: int, workers: int) -> np.ndarray:
    """(g + 1,) bounds of groups of consecutive lists, (l,) sizes, that fit into a task's memory."""
    ends = np.cumsum(sizes)
    rows = int(ends[-1])
    room = max(1, int(_OF_LISTS * memory_bytes) // of_a_row)
    least = min(max(_LEAST_TASKS, _TASKS_OF_A_WORKER * workers), -(-rows // _SMALL))
    wanted = max(-(-rows // room), least)
    if wanted > workers:
        wanted += -wanted % workers  # as many for each
    places = np.searchsorted(ends, rows * np.arange(1, wanted) / wanted)
    groups: np.ndarray = np.unique(np.concatenate([[0], places + 1, [len(sizes)]]))
    return groups


def search(stages: Stages, blocks: Sequence[Block], direction: Direction, k: int) -> None:
    """Find the k nearest neighbours of every query, in files by group of lists."""
    name = direction.name
    groups = len(stages.work.load("groups")[direction.index]) - 1
    if stages.has(*(f"near-{name}-{group}" for group in range(groups))):
        return
    what = f"{direction.index} neighbours" if direction.is_within else (
        f"{direction.index} by {direction.query}"
    )  # fmt: skip
    arguments = [(direction, k)] * groups
    stages.run(f"searching {what}", f"first-{name}", search_first_list, arguments)
    files = [f"lists-{number}" for number in range(len(blocks))]
    stages.joined(f"first-lists-{name}", files, {"lists": f"{name}_first"})
    stages.run(f"searching {what}, further lists", f"other-{name}", search_other_lists, arguments)
    stages.run(f"merging {what}", f"near-{name}", merge_heaps, arguments)
    stages.drop(f"first-{name}-", f"other-{name}-", f"first-lists-{name}")


def recall(
    stages: Stages, direction: Direction, assigned: Assignment, queries: Mapping[str, np.ndarray]
) -> float:
    """Recall of the search: the share of the sample's exact neighbours that were found."""
    exact = assigned.exact[direction.name]
    if not exact.ids.size:
        return 1.0
    asked = queries[direction.query]
    cosines = np.full(exact.cosines.shape, -np.inf, np.float32)
    for group in range(len(stages.work.load("groups")[direction.index]) - 1):
        rows, nearest = nearest_of(stages.work, direction, group)
        chosen = np.flatnonzero(np.isin(asked, rows))
        cosines[chosen] = nearest.cosines[np.searchsorted(rows, asked[chosen])]
    return recall_by_value(cosines, exact.cosines)
