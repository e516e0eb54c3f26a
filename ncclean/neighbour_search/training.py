"""Training of the index on a sample: inverted lists, whitening, and nprobe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from ncclean.neighbour_search.block_tasks import (
    ACROSS,
    SIDES,
    WITHIN,
    Direction,
    assign_block,
    sample_block,
)
from ncclean.neighbour_search.blocks import Block
from ncclean.neighbour_search.chunked import add_counts, chunks, take_places
from ncclean.neighbour_search.corpus import Corpus
from ncclean.neighbour_search.inverted_lists import (
    MAX_NPROBE,
    TIE,
    TRAINING_ROWS_PER_LIST,
    InvertedLists,
    Nearest,
    nearest_lists,
    nlist_for,
    train_lists,
)
from ncclean.neighbour_search.near_duplicates import GROUPING_EFFORT
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.stages import Stages
from ncclean.neighbour_search.whitening import SAMPLE_ROWS, Whitening
from ncclean.storage.array_files import Arrays

EXACT_BELOW = 100_000
_SAMPLE = 1000  # queries that recall is measured with
_ROWS_PER_EXACT_LIST = 2048
_EXACT_LISTS = 64
# A gigabyte of 512 dimensions. Not a matter of the memory at hand: results must not depend on it.
_MOST_SAMPLED = 1 << 19


@dataclass(frozen=True)
class Sample:
    """Vectors that the search is measured with.

    `ids` are those of the sample by side, `exact` their k nearest by direction, and by side those
    in the whitened space.
    """

    ids: dict[str, np.ndarray]
    exact: dict[str, Nearest]


def is_exact(options: NeighbourOptions, pairs: int) -> bool:
    """Whether the search compares everything: `auto` does so below 100,000 pairs."""
    return options.index == "flat" or (options.index == "auto" and pairs < EXACT_BELOW)


def lists_of(rows: int, exact: bool) -> int:
    """Number of inverted lists for a number of distinct rows."""
    if exact:
        return max(1, min(_EXACT_LISTS, rows // _ROWS_PER_EXACT_LIST))
    return nlist_for(rows)


def learn(
    stages: Stages, blocks: Sequence[Block], corpus: Corpus, options: NeighbourOptions,
    *, whiten: bool, exact: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Train inverted lists and whitening on a random sample; returns ids of queries by side."""
    counts = {side: len(distinct) for side, distinct in corpus.distinct.items()}
    rng = {side: np.random.default_rng(options.seed) for side in SIDES}
    queries = {side: _draw(counts[side], _SAMPLE, rng[side]) for side in SIDES}
    if stages.has("learnt", "queries"):
        return queries
    lists = {side: lists_of(counts[side], exact) for side in SIDES}
    clusters = options.clusters or nlist_for(counts["image"])
    rows = {}
    for side in SIDES:
        most_lists = max(lists[side], clusters) if side == "image" else lists[side]
        sampled = min(_MOST_SAMPLED, max(TRAINING_ROWS_PER_LIST * most_lists, SAMPLE_ROWS))
        rows[side] = np.union1d(_draw(counts[side], sampled, rng[side]), queries[side])
    stages.save("sample-rows", **rows)
    names = stages.run("sampling", "sample", sample_block, [(block,) for block in blocks])
    stages.progress.say("learning lists")
    learnt: dict[str, np.ndarray] = {}
    asked: dict[str, np.ndarray] = {}
    # Eigenvectors depend on the number of threads in their last digits, and it on the machine.
    with threadpool_limits(1):
        for side in SIDES:
            files = (stages.work.load(name) for name in names)
            sample = np.concatenate([file[side] for file in files], dtype=np.float32)

            def some(most: int, sample: np.ndarray = sample) -> np.ndarray:
                rows = _draw(len(sample), most, np.random.default_rng(options.seed))
                return sample[rows]  # type: ignore[no-any-return]

            space = Whitening.fit(some(SAMPLE_ROWS)) if whiten else Whitening.none(corpus.dim)
            learnt |= space.arrays(f"{side}_space_")
            wanted = {f"{side}_lists": lists[side]}
            if side == "image" and clusters != lists[side]:
                wanted["cluster_lists"] = clusters
            for name, count in wanted.items():
                learnt[name] = train_lists(
                    some(TRAINING_ROWS_PER_LIST * count), count, options.seed
                )
            asked[side] = sample[np.searchsorted(rows[side], queries[side])]
            asked[f"{side}_whitened"] = space.apply(asked[side])
    stages.save("learnt", **learnt)
    stages.save("queries", **asked)
    stages.drop("sample-")
    return queries


def fill_lists(
    stages: Stages, blocks: Sequence[Block], corpus: Corpus, queries: dict[str, np.ndarray], k: int
) -> Sample:
    """Write all distinct vectors by list, and the clusters; search the sample exactly."""
    if not stages.has("lists-image", "lists-text", "clusters", "truth"):
        arguments = [(block, k) for block in blocks]
        names = stages.run("assigning lists", "assign", assign_block, arguments)
        files = [stages.work.load(name) for name in names]
        stages.progress.say("merging lists")
        for side in SIDES:
            _merge(stages, files, side)
        stages.joined(
            "clusters", names,
            {"cluster": "cluster" if "cluster" in files[0] else "image_list"},
        )  # fmt: skip
        truth: Arrays = {}
        for index in SIDES:
            for query in (*SIDES, f"{index}_whitened"):
                name = f"{index}_by_{query}"
                cosines = np.stack([file[f"{name}_cosines"] for file in files])
                ids = np.stack([file[f"{name}_ids"] for file in files]).astype(np.int64)
                merged = faiss.merge_knn_results(cosines, ids, keep_max=True)
                truth[f"{query}-{index}_cosines"], truth[f"{query}-{index}_ids"] = merged
        stages.save("truth", **truth)
        stages.drop("assign-")
    truth, exact = stages.work.load("truth"), {}
    whitened = (Direction(f"{side}_whitened", side) for side in SIDES)
    for direction in (*WITHIN, *ACROSS, *whitened):
        name, index = direction.name, direction.index
        nearest = Nearest(truth[f"{name}_cosines"], truth[f"{name}_ids"].astype(np.int32))
        is_within = direction.query.startswith(index)
        if is_within:
            nearest = nearest.without(queries[index])
        width = min(k, len(corpus.distinct[index]) - is_within)
        exact[name] = Nearest(nearest.cosines[:, :width], nearest.ids[:, :width])
    return Sample(queries, exact)


def _merge(stages: Stages, files: Sequence[Arrays], side: str) -> None:
    """Merge the vectors of all blocks into one file, in the order of lists, then of ids."""
    if stages.has(f"lists-{side}"):
        return
    lists = len(stages.work.load("learnt")[f"{side}_lists"])
    sizes = np.zeros(lists, np.int64)
    for file in files:
        add_counts(sizes, file[f"{side}_list"])
    count, dim = int(sizes.sum()), files[0][f"{side}_vectors"].shape[1]
    shapes = {
        "vectors": ((count, dim), np.float16), "ids": ((count,), np.int32),
        "place": ((count,), np.int32), "starts": ((lists + 1,), np.int64),
    }  # fmt: skip
    with stages.writing(f"lists-{side}", shapes) as merged:
        merged["starts"][1:] = np.cumsum(sizes)
        next_place, begin = merged["starts"][:-1].copy(), 0
        for file in files:
            for rows in chunks(len(file[f"{side}_list"])):
                places = take_places(file[f"{side}_list"][rows], next_place)
                ids = np.arange(begin + rows.start, begin + rows.stop)
                merged["vectors"][places] = file[f"{side}_vectors"][rows]
                merged["ids"][places], merged["place"][ids] = ids, places
            begin += len(file[f"{side}_list"])


def nprobe_of(stages: Stages, sample: Sample, direction: Direction, recall: float) -> int:
    """The fewest lists that hold the share `recall` of the true neighbours of the sample."""
    exact = sample.exact[direction.name]
    if not exact.ids.size:
        return 1
    rank, most = _rank(stages, direction.query, direction.index, exact.ids)
    reached = np.cumsum(np.bincount(rank.ravel(), minlength=most + 1)) / rank.size
    enough = np.flatnonzero(reached[:most] >= recall)
    return int(enough[0]) + 1 if len(enough) else most


def duplicate_recall(stages: Stages, sample: Sample, side: str, threshold: float) -> float:
    """The share of queries with a near-duplicate whose nearest one is in a list they visit."""
    exact = sample.exact[f"{side}_whitened-{side}"]
    if not exact.ids.shape[1]:
        return float("nan")
    has_one = exact.cosines[:, 0] >= threshold
    rank, _ = _rank(stages, side, side, exact.ids[:, :1])
    return float((rank[has_one] < GROUPING_EFFORT).mean()) if has_one.any() else float("nan")


def _rank(stages: Stages, query: str, index: str, ids: np.ndarray) -> tuple[np.ndarray, int]:
    """How many lists the sample visits before those of (q, k) ids, at most as many as returned."""
    lists = InvertedLists(stages.work, index)
    asked = np.asarray(stages.work.load("queries")[query])
    probed = nearest_lists(asked, lists.centroids, MAX_NPROBE)
    visited = lists.list_of(ids)[:, :, None] == probed[:, None, :]
    most = probed.shape[1]
    return np.where(visited.any(axis=2), visited.argmax(axis=2), most), most


def recall_by_value(cosines: np.ndarray, exact: np.ndarray) -> float:
    """Share of the (q, k) exact neighbours that were found; ties with the k-th count as found."""
    return float((cosines >= exact[:, -1:] - TIE).mean())


def _draw(rows: int, wanted: int, rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.choice(rows, min(wanted, rows), replace=False))


def describe(direction: Direction, across: Direction, nprobe: Mapping[str, int], lists: int) -> str:
    """The index in words: how many lists a side has and how many are visited."""
    if across.name not in nprobe:
        return "flat (exact)"
    return f"ivf ({lists} lists, {nprobe[direction.name]} and {nprobe[across.name]} visited)"
