"""Searches the whole corpus: all results of `ncclean neighbours` about its pairs.

The corpus is read block by block, its vectors are written by list, and lists are searched for some
of the vectors after the other. What is held for all pairs at once are a few numbers for each;
vectors and neighbours lie in files. Results depend on the memory, on how many tasks run at a time
and where by no more than the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from ncclean.base.progress import SILENT, Progress
from ncclean.base.scratch import scratch_folder
from ncclean.neighbour_search.better_matches import BetterMatches
from ncclean.neighbour_search.block_tasks import ACROSS, SIDES, WITHIN, Direction
from ncclean.neighbour_search.blocks import ArrayBlock, Block
from ncclean.neighbour_search.chunked import VALUES, add_counts, chunks
from ncclean.neighbour_search.columns import (
    better_among_neighbours,
    better_of_all,
    distinct_columns,
    group_sizes,
    lemon_scores,
    pair_groups,
    reference_matches,
)
from ncclean.neighbour_search.corpus import read_corpus
from ncclean.neighbour_search.inverted_lists import InvertedLists, likely_nprobe
from ncclean.neighbour_search.near_duplicates import GROUPING_EFFORT, group_side, join_single_rows
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.result import SAME_IMAGE_COSINE, THRESHOLDS, CorpusNeighbours, Side
from ncclean.neighbour_search.search_tasks import nearest_of, search_lists, task_rows
from ncclean.neighbour_search.stages import Stages
from ncclean.neighbour_search.training import (
    Sample,
    describe,
    duplicate_recall,
    fill_lists,
    is_exact,
    learn,
    nprobe_of,
    recall_by_value,
)
from ncclean.neighbour_search.whitening import ROWS_PER_DIMENSION, Whitening
from ncclean.runners.runner import InProcess, Runner
from ncclean.storage.array_files import ArrayFolder

DEFAULT_MEMORY = 4 << 30


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
    exact = is_exact(options, len(corpus))
    # Products with one list are too small for several threads, which wait for one another.
    with threadpool_limits(None if exact else 1):
        queries = learn(stages, blocks, corpus, options, whiten=whiten, exact=exact)
        sample = fill_lists(stages, blocks, corpus, queries, options.k)
        lists = {side: len(stages.work.load("learnt")[f"{side}_lists"]) for side in SIDES}
        tasks = {
            side: task_rows(len(corpus.distinct[side]), corpus.dim, options.k,
                            likely_nprobe(lists[side]), memory_bytes)
            for side in SIDES
        }  # fmt: skip
        joins = whiten and options.image_threshold is None  # single images, by their plain cosines
        for side in SIDES:
            group_side(
                stages, side, "leaders-image" if joins and side == "image" else f"groups-{side}",
                tasks[side], thresholds[side], options.linkage,
                lists[side] if exact else GROUPING_EFFORT,
            )  # fmt: skip
        nprobe, recalls = {}, {}

        def search(direction: Direction) -> None:
            name, index = direction.name, direction.index
            nprobe[name] = (
                lists[index] if exact else nprobe_of(stages, sample, direction, options.recall)
            )
            k = corpus.width(direction, options.k)
            what = f"{index} neighbours" if direction.is_within else f"{index} by {direction.query}"
            arguments = [(direction, rows, k, nprobe[name]) for rows in tasks[direction.query]]
            stages.run(f"searching {what}", f"near-{name}", search_lists, arguments)
            recalls[name] = recall(stages, direction, sample, len(arguments))

        for direction in WITHIN:
            search(direction)
        if joins:
            join_single_images(stages, len(tasks["image"]))
        groups = pair_groups(stages, corpus)
        sizes = group_sizes(stages, groups)
        counts = {side: len(rows) for side, rows in tasks.items()}
        lemon = lemon_scores(stages, corpus, counts, options.k)
        if exact:
            better = better_of_all(stages, blocks, corpus)
        else:
            better_counts = []
            for direction in ACROSS:
                search(direction)
                count = counts[direction.query]
                better_counts.append(better_among_neighbours(stages, corpus, direction, count))
            better = BetterMatches(*better_counts)
        columns = distinct_columns(stages, corpus)
        matches = reference_matches(stages, corpus, reference, tasks["image"], whiten, options)

    def result(here: str, there: str) -> Side:
        within, across = Direction(here, here), Direction(there, here)
        return Side(
            distinct=len(corpus.distinct[here]),
            threshold=thresholds[here],
            group=groups[here],
            sizes=sizes[here],
            members=sizes["images" if here == "image" else here],
            similarity=columns[here],
            index=describe(within, across, nprobe, lists[here]),
            recall=recalls[within.name],
            across_recall=recalls.get(across.name, 1.0),
            duplicate_recall=1.0
            if exact
            else duplicate_recall(stages, sample, here, thresholds[here]),
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
        reference=matches,
        left_out=corpus.left_out,
        repeated_uids=corpus.repeated_uids(stages),
    )
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


def join_single_images(stages: Stages, tasks: int) -> None:
    """Add images without near-duplicates to a group that matches in the model's own space."""
    if stages.has("groups-image"):
        return
    before = stages.work.load("leaders-image")
    shapes = {name: (array.shape, array.dtype) for name, array in before.items()}
    near = [np.empty((3, 0))]
    with (
        stages.work.scratch({"sizes": shapes["representative"]}) as scratch,
        stages.writing("groups-image", shapes) as groups,
    ):
        sizes = scratch["sizes"]
        for rows in chunks(len(sizes), VALUES):
            for name, array in before.items():
                groups[name][rows] = array[rows]
        add_counts(sizes, before["representative"])
        for number in range(tasks):
            queries, (cosines, ids) = nearest_of(stages.work, Direction("image", "image"), number)
            is_near = (cosines >= SAME_IMAGE_COSINE) & (ids < queries[:, None]) & (ids >= 0)
            is_near &= sizes[queries][:, None] == 1
            row, place = np.nonzero(is_near)
            near.append(np.stack([queries[row], ids[row, place], -cosines[row, place]]))
        later, earlier, minus = np.concatenate(near, axis=1)
        order = np.lexsort((minus, later))
        later, earlier = (one[order].astype(np.int64) for one in (later, earlier))
        joined = join_single_rows(groups["representative"], sizes, later, earlier)
        lists = InvertedLists(stages.work, "image")
        space = Whitening.of(stages.work.load("learnt"), "image_space_")
        for some in chunks(len(joined)):
            single = joined[some]
            pairs = (single, groups["representative"][single])
            sides = (space.apply(lists.take(ids)) for ids in pairs)
            groups["similarity"][single] = np.einsum("nd,nd->n", *sides)


def recall(stages: Stages, direction: Direction, sample: Sample, tasks: int) -> float:
    """Recall of the search: the share of the sample's exact neighbours that were found."""
    exact = sample.exact[direction.name]
    if not exact.ids.size:
        return 1.0
    asked = sample.ids[direction.query]
    cosines = np.full(exact.cosines.shape, -np.inf, np.float32)
    for number in range(tasks):
        rows, nearest = nearest_of(stages.work, direction, number)
        chosen = np.flatnonzero(np.isin(asked, rows))
        cosines[chosen] = nearest.cosines[np.searchsorted(rows, asked[chosen])]
    return recall_by_value(cosines, exact.cosines)
