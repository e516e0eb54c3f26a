"""Training of the index on a sample: inverted lists, whitening, and nprobe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from ncclean.neighbour_search.block_tasks import (
    ACROSS,
    MAX_NPROBE,
    SIDES,
    WITHIN,
    Direction,
    assign_block,
    sample_block,
)
from ncclean.neighbour_search.blocks import Block
from ncclean.neighbour_search.coarse_quantizer import (
    TRAINING_ROWS_PER_LIST,
    CoarseQuantizer,
    nlist_for,
)
from ncclean.neighbour_search.copies import Distinct
from ncclean.neighbour_search.matmul import load_faiss
from ncclean.neighbour_search.near_duplicates import GROUPING_EFFORT
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.stages import Stages
from ncclean.neighbour_search.whitening import SAMPLE_ROWS, Whitening

EXACT_BELOW = 100_000
_SAMPLE = 1000  # queries that recall is measured with
_ROWS_PER_EXACT_LIST = 2048
_EXACT_LISTS = 64
# A gigabyte of 512 dimensions. Not a matter of the memory at hand: results must not depend on it.
_MOST_SAMPLED = 1 << 19


@dataclass(frozen=True)
class SampleNeighbours:
    """The (q, k) cosines and ids of the nearest of a sample, by direction name."""

    cosines: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True)
class Assignment:
    """By side, (u,) `lists` of the distinct rows; and (u,) `clusters` of the images.

    `exact` has the true neighbours of the sample; `probes` how many lists a search visits.
    """

    lists: dict[str, np.ndarray]
    clusters: np.ndarray
    exact: dict[str, SampleNeighbours]
    nprobe: dict[str, int]
    duplicate_recall: dict[str, float]

    def nprobes(self, side: str) -> list[int]:
        """Nprobe, the number of lists that a query visits, by direction of the search."""
        names = (one.name for one in (*WITHIN, *ACROSS) if one.index == side)
        return [self.nprobe[name] for name in names if name in self.nprobe]


def is_exact(options: NeighbourOptions, pairs: int) -> bool:
    """Whether the search compares everything: `auto` does so below 100,000 pairs."""
    return options.index == "flat" or (options.index == "auto" and pairs < EXACT_BELOW)


def learn(
    stages: Stages,
    blocks: Sequence[Block],
    distinct: Mapping[str, Distinct],
    options: NeighbourOptions,
    *,
    whiten: bool,
    exact: bool,
) -> dict[str, np.ndarray]:
    """Train inverted lists and whitening on a random sample; returns the sampled ids by side."""
    rng = {side: np.random.default_rng(options.seed) for side in SIDES}
    queries = {side: _draw(len(distinct[side]), _SAMPLE, rng[side]) for side in SIDES}
    if stages.has("learnt", "queries"):
        return queries
    lists = {side: lists_of(len(distinct[side]), exact) for side in SIDES}
    clusters = options.clusters or nlist_for(len(distinct["image"]))
    rows = {}
    for side in SIDES:
        most_lists = max(lists[side], clusters) if side == "image" else lists[side]
        wanted = min(_MOST_SAMPLED, max(TRAINING_ROWS_PER_LIST * most_lists, SAMPLE_ROWS))
        drawn = _draw(len(distinct[side]), wanted, rng[side])
        rows[side] = np.union1d(drawn, queries[side])
    stages.save("sample-rows", **rows)
    names = stages.run("sampling", "sample", sample_block, [(block,) for block in blocks])
    stages.progress.say("learning lists")
    learnt: dict[str, np.ndarray] = {}
    asked: dict[str, np.ndarray] = {}
    # Eigenvectors depend on the number of threads in their last digits, and it on the machine.
    load_faiss()  # a limit holds for what is loaded
    with threadpool_limits(1):
        for side in SIDES:
            sample = np.concatenate(
                [stages.work.load(name)[side] for name in names], dtype=np.float32
            )
            space = _whitening(sample, whiten, options.seed)
            learnt |= space.arrays(f"{side}_space_")
            learnt |= _centroids(sample, lists[side], options.seed).arrays(f"{side}_")
            if side == "image" and clusters != lists[side]:
                learnt |= _centroids(sample, clusters, options.seed).arrays("cluster_")
            asked[side] = sample[np.searchsorted(rows[side], queries[side])]
            asked[f"{side}_whitened"] = space.apply(asked[side])
    stages.save("learnt", **learnt)
    stages.save("queries", **asked)
    stages.drop("sample-")
    return queries


def lists_of(rows: int, exact: bool) -> int:
    """Number of inverted lists for a number of distinct rows."""
    if exact:
        return max(1, min(_EXACT_LISTS, rows // _ROWS_PER_EXACT_LIST))
    return nlist_for(rows)


def _centroids(sample: np.ndarray, lists: int, seed: int) -> CoarseQuantizer:
    chosen = _draw(len(sample), TRAINING_ROWS_PER_LIST * lists, np.random.default_rng(seed))
    return CoarseQuantizer.train(sample[chosen], lists, seed)


def _whitening(sample: np.ndarray, whiten: bool, seed: int) -> Whitening:
    if not whiten:
        return Whitening.none(sample.shape[1])
    return Whitening.fit(sample[_draw(len(sample), SAMPLE_ROWS, np.random.default_rng(seed))])


def assign(
    stages: Stages,
    blocks: Sequence[Block],
    queries: Mapping[str, np.ndarray],
    options: NeighbourOptions,
    *,
    exact: bool,
    thresholds: Mapping[str, float],
) -> Assignment:
    """Assign all distinct rows to lists, and find the nprobe that reaches the wanted recall."""
    arguments = [(block, options.k) for block in blocks]
    names = stages.run("assigning lists", "assign", assign_block, arguments)
    files = [stages.work.load(name) for name in names]
    lists = stages.joined("lists", names, {side: f"{side}_list" for side in SIDES})
    clusters = lists["image"]
    if "cluster" in files[0]:
        clusters = stages.joined("clusters", names, {"cluster": "cluster"})["cluster"]
    for side in SIDES:
        stages.joined(f"lengths-{side}", names, {"lengths": f"{side}_length"})
    learnt, asked = stages.work.load("learnt"), stages.work.load("queries")
    truths, nprobe, duplicate_recall = {}, {}, {}
    for side in SIDES:
        quantizer = CoarseQuantizer.of(learnt, f"{side}_")
        for direction in (*WITHIN, *ACROSS):
            if direction.index != side or (exact and not direction.is_within):
                continue
            truth = _merged(files, side, direction.query, options.k + 1)
            if direction.is_within:
                truth = _without(truth, queries[side])
            truth = SampleNeighbours(truth.cosines[:, : options.k], truth.ids[:, : options.k])
            truths[direction.name] = truth
            probed = quantizer.assign(np.asarray(asked[direction.query]), MAX_NPROBE)
            nprobes = _nprobe_of(truth, lists[side], probed, options.recall)
            nprobe[direction.name] = len(quantizer) if exact else nprobes
        nprobe[f"{side}-{side}"] = min(
            max(nprobe[f"{side}-{side}"], GROUPING_EFFORT), len(quantizer)
        )
        pairs = _without(_merged(files, side, f"{side}_whitened", options.k + 1), queries[side])
        probed = quantizer.assign(np.asarray(asked[side]), GROUPING_EFFORT)
        duplicate_recall[side] = (
            1.0 if exact else _duplicate_recall(pairs, thresholds[side], lists[side], probed)
        )
    return Assignment(lists, clusters, truths, nprobe, duplicate_recall)


def _merged(
    files: Sequence[Mapping[str, np.ndarray]], side: str, query: str, width: int
) -> SampleNeighbours:
    """The nearest that exact search found in all blocks, nearest first."""
    name = f"{side}_by_{query}"
    nearest: tuple[np.ndarray, ...] = tuple(
        np.empty((len(files[0][f"{name}_ids"]), 0), kind) for kind in (np.float32, np.int32)
    )
    for file in files:
        ids = np.concatenate([nearest[1], file[f"{name}_ids"]], axis=1)
        cosines = np.concatenate([nearest[0], file[f"{name}_cosines"]], axis=1)
        cosines = np.where(ids >= 0, cosines, -np.inf)
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :width]
        nearest = tuple(np.take_along_axis(array, order, axis=1) for array in (cosines, ids))
    return SampleNeighbours(*nearest)


def _without(exact: SampleNeighbours, queries: np.ndarray) -> SampleNeighbours:
    """The same without the queries themselves."""
    itself = exact.ids == queries[:, None]
    keep = np.argsort(itself, axis=1, kind="stable")[:, : max(exact.ids.shape[1] - 1, 0)]
    others = (np.take_along_axis(array, keep, axis=1) for array in (exact.cosines, exact.ids))
    return SampleNeighbours(*others)


def _nprobe_of(
    truth: SampleNeighbours, lists: np.ndarray, probed: np.ndarray, recall: float
) -> int:
    """The fewest lists that hold the share `recall` of the true neighbours."""
    if not truth.ids.size:
        return 1
    within = lists[truth.ids][:, :, None] == probed[:, None, :]
    rank = np.where(within.any(axis=2), within.argmax(axis=2), probed.shape[1])
    reached = np.cumsum(np.bincount(rank.ravel(), minlength=probed.shape[1] + 1)) / rank.size
    enough = np.flatnonzero(reached[: probed.shape[1]] >= recall)
    return int(enough[0]) + 1 if len(enough) else probed.shape[1]


def _duplicate_recall(
    exact: SampleNeighbours, threshold: float, lists: np.ndarray, probed: np.ndarray
) -> float:
    """The share of queries with a near-duplicate whose nearest one is in a list they visit."""
    if not exact.ids.shape[1]:
        return float("nan")
    has_one = exact.cosines[:, 0] >= threshold
    if not has_one.any():
        return float("nan")
    visited = (lists[exact.ids[:, 0]][:, None] == probed).any(axis=1)
    return float(visited[has_one].mean())


def _draw(rows: int, wanted: int, rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.choice(rows, min(wanted, rows), replace=False))


def describe(direction: Direction, across: Direction, nprobe: Mapping[str, int], lists: int) -> str:
    """The index in words: how many lists a side has and how many are visited."""
    if across.name not in nprobe:
        return "flat (exact)"
    return f"ivf ({lists} lists, {nprobe[direction.name]} and {nprobe[across.name]} visited)"
