"""Train the index on a sample: inverted lists, whitening, and nprobe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import faiss
import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from ncclean.neighbour_search.blocks import EmbeddedBlock
from ncclean.neighbour_search.corpus import (
    ACROSS,
    SIDES,
    WITHIN,
    Corpus,
    Direction,
    distinct_vectors,
)
from ncclean.neighbour_search.inverted_lists import (
    MAX_NPROBE,
    TRAINING_ROWS_PER_LIST,
    InvertedLists,
    Nearest,
    NearestHeap,
    nearest_lists,
    nlist_for,
    train_lists,
)
from ncclean.neighbour_search.near_duplicates import GROUPING_EFFORT
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.stages import VALUES, Stages, chunks
from ncclean.neighbour_search.whitening import SAMPLE_ROWS, Whitening, whitened
from ncclean.storage.array_files import ArrayFolder, Arrays

EXACT_BELOW = 100_000
_SAMPLE = 1000  # queries to measure recall with
_ROWS_PER_EXACT_LIST = 2048
_EXACT_LISTS = 64
# A gigabyte at 512 dimensions. It does not depend on the available memory: results must not.
_MOST_SAMPLED = 1 << 19
# The searches of a sample, over all vectors: also in the whitened space of a side.
_WHITENED = tuple(Direction(f"{side}_whitened", side) for side in SIDES)
_MEASURED = (*WITHIN, *ACROSS, *_WHITENED)


def is_exact(options: NeighbourOptions, pairs: int) -> bool:
    """Check whether a search compares everything with everything.

    With the index `auto`, it does below 100,000 pairs.
    """
    return options.index == "flat" or (options.index == "auto" and pairs < EXACT_BELOW)


def lists_of(rows: int, exact: bool) -> int:
    """Return the number of inverted lists for a number of distinct rows."""
    return max(1, min(_EXACT_LISTS, rows // _ROWS_PER_EXACT_LIST)) if exact else nlist_for(rows)


def learn(
    stages: Stages, blocks: Sequence[EmbeddedBlock], corpus: Corpus, options: NeighbourOptions,
    *, whiten: bool, exact: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Train inverted lists, and whitening if requested, on a random sample of the vectors.

    Returns, by side, the ids of sampled queries on which recall is measured.
    """
    counts = {side: len(distinct) for side, distinct in corpus.distinct.items()}
    rng = {side: np.random.default_rng(options.seed) for side in SIDES}
    queries = {side: _draw(counts[side], _SAMPLE, rng[side]) for side in SIDES}
    if stages.has("learnt", "queries"):
        return queries
    wanted = {f"{side}_lists": lists_of(counts[side], exact) for side in SIDES}
    clusters = options.clusters or nlist_for(counts["image"])
    if clusters != wanted["image_lists"]:
        wanted["image_clusters"] = clusters
    rows = {}
    for side in SIDES:
        most_lists = max(count for name, count in wanted.items() if name.startswith(side))
        sampled = min(_MOST_SAMPLED, max(TRAINING_ROWS_PER_LIST * most_lists, SAMPLE_ROWS))
        rows[side] = np.union1d(_draw(counts[side], sampled, rng[side]), queries[side])
    stages.save("sample-rows", **rows)
    arguments = list(zip(blocks, corpus.starts, strict=False))
    names = stages.run("sampling", "sample", sample_block, arguments)
    stages.progress.say("learning lists")
    learnt: Arrays = {}
    query_vectors: Arrays = {}
    # The last digits of eigenvectors depend on the number of threads, and that on the machine.
    with threadpool_limits(1):
        for side in SIDES:
            files = (stages.work.load(name) for name in names)
            sample = np.concatenate([file[side] for file in files], dtype=np.float32)

            def some(most: int, sample: np.ndarray = sample) -> np.ndarray:
                rows = _draw(len(sample), most, np.random.default_rng(options.seed))
                return sample[rows]  # type: ignore[no-any-return]

            if whiten:
                space = Whitening.fit(some(SAMPLE_ROWS))
                learnt |= {f"{side}_mean": space.mean, f"{side}_axes": space.axes}
            for name, count in wanted.items():
                if name.startswith(side):
                    members = some(TRAINING_ROWS_PER_LIST * count)
                    learnt[name] = train_lists(members, count, options.seed)
            query_vectors[side] = sample[np.searchsorted(rows[side], queries[side])]
            query_vectors[f"{side}_whitened"] = whitened(learnt, side, query_vectors[side])
    stages.save("learnt", **learnt)
    stages.save("queries", **query_vectors)
    stages.drop("sample-")
    return queries


def sample_block(work: ArrayFolder, number: int, block: EmbeddedBlock, start: int) -> None:
    """Write a block's share of the training sample to a file: vectors of sampled rows, in order."""
    rows, sampled = work.load("sample-rows"), {}
    for side, (begin, vectors) in distinct_vectors(work, block, start).items():
        wanted = rows[side][(rows[side] >= begin) & (rows[side] < begin + len(vectors))]
        sampled[side] = vectors[wanted - begin]
    work.save(f"sample-{number}", sampled)


def fill_lists(
    stages: Stages, blocks: Sequence[EmbeddedBlock], corpus: Corpus,
    queries: Mapping[str, np.ndarray], k: int,
) -> dict[str, Nearest]:  # fmt: skip
    """Write all distinct vectors sorted by list, and the images' clusters; search a sample exactly.

    Returns, by direction, the k nearest neighbours of the (q,) `queries` of each side, and of those
    in the whitened space.
    """
    if not stages.has("lists-image", "lists-text", "clusters", "truth"):
        arguments = [(*block, k) for block in zip(blocks, corpus.starts, strict=False)]
        names = stages.run("assigning lists", "assign", assign_block, arguments)
        files = [stages.work.load(name) for name in names]
        stages.progress.say("merging lists")
        for side in SIDES:
            _merge(stages, files, side)
        name = "image_clusters" if "image_clusters" in files[0] else "image_lists"
        clusters = pa.chunked_array([pa.array(file[name]) for file in files])
        stages.select("clusters", "SELECT cluster FROM numbered ORDER BY row", cluster=clusters)
        truth: Arrays = {}
        for direction in _MEASURED:
            name, is_within = direction.name, direction not in ACROSS
            cosines = np.stack([file[f"{name}_cosines"] for file in files])
            ids = np.stack([file[f"{name}_ids"] for file in files]).astype(np.int64)
            nearest = Nearest(*faiss.merge_knn_results(cosines, ids, keep_max=True))
            if is_within:
                nearest = nearest.without(queries[direction.index])
            width = min(k, len(corpus.distinct[direction.index]) - is_within)
            for field, values in nearest._asdict().items():
                truth[f"{name}_{field}"] = values[:, :width]
        stages.save("truth", **truth)
        stages.drop("assign-")
    truth = stages.work.load("truth")
    return {
        direction.name: Nearest(truth[f"{direction.name}_cosines"], truth[f"{direction.name}_ids"])
        for direction in _MEASURED
    }


def assign_block(work: ArrayFolder, number: int, block: EmbeddedBlock, start: int, k: int) -> None:
    """Write a block's distinct vectors with their nearest lists to a file; search a sample exactly.

    Writes the (q, k + 1) nearest of sampled queries in the block, by direction of search.
    """
    learnt, queries = work.load("learnt"), work.load("queries")
    arrays: Arrays = {}
    for side, (begin, vectors) in distinct_vectors(work, block, start).items():
        heaps = {
            direction: NearestHeap(queries[direction.query], k + 1)
            for direction in _MEASURED
            if direction.index == side
        }
        for rows in chunks(len(vectors)):
            chunk = vectors[rows].astype(np.float32)
            ids = np.arange(begin + rows.start, begin + rows.stop)
            for direction, heap in heaps.items():
                is_plain = direction not in _WHITENED
                heap.add(chunk if is_plain else whitened(learnt, side, chunk), ids)
        for direction, heap in heaps.items():
            nearest = heap.nearest()
            arrays[f"{direction.name}_cosines"] = nearest.cosines
            arrays[f"{direction.name}_ids"] = nearest.ids
        arrays[f"{side}_vectors"] = vectors
        for name in learnt.keys() & {f"{side}_lists", f"{side}_clusters"}:
            arrays[name] = nearest_lists(vectors, learnt[name], 1)[:, 0]
    work.save(f"assign-{number}", arrays)


def _merge(stages: Stages, files: Sequence[Arrays], side: str) -> None:
    """Merge the vectors of all blocks into one file, ordered by list, then id."""
    if stages.has(f"lists-{side}"):
        return
    lists = pa.chunked_array([pa.array(file[f"{side}_lists"]) for file in files])
    query = "SELECT list, row FROM numbered ORDER BY list, row"
    ids = stages.select(f"by-list-{side}", query, list=lists)["row"]
    count, dim = len(ids), files[0][f"{side}_vectors"].shape[1]
    shapes = {"vectors": ((count, dim), np.float16), "place": ((count,), np.int32)}
    with stages.writing(f"lists-{side}", shapes) as merged:
        for rows in chunks(count, VALUES):
            merged["place"][ids[rows]] = np.arange(rows.start, rows.stop)
        begin = 0
        for file in files:
            vectors = file[f"{side}_vectors"]
            for rows in chunks(len(vectors)):
                places = merged["place"][begin + rows.start : begin + rows.stop]
                merged["vectors"][places] = vectors[rows]
            begin += len(vectors)


def nprobe_of(stages: Stages, exact: Nearest, direction: Direction, recall: float) -> int:
    """Return the smallest nprobe at which a sample reaches `recall` of its exact neighbours."""
    if not exact.ids.size:
        return 1
    rank, most = _rank(stages, direction, exact.ids)
    reached = np.cumsum(np.bincount(rank.ravel(), minlength=most + 1)) / rank.size
    enough = np.flatnonzero(reached[:most] >= recall)
    return int(enough[0]) + 1 if len(enough) else most


def duplicate_recall(stages: Stages, exact: Nearest, side: str, threshold: float) -> float:
    """Return the share of sampled queries with a near-duplicate whose nearest is in a visited list.

    `exact` are the sample's exact neighbours in the whitened space. NaN if none has a
    near-duplicate.
    """
    if not exact.ids.shape[1]:
        return float("nan")
    has_one = exact.cosines[:, 0] >= threshold
    rank, _ = _rank(stages, Direction(side, side), exact.ids[:, :1])
    return float((rank[has_one] < GROUPING_EFFORT).mean()) if has_one.any() else float("nan")


def _rank(stages: Stages, direction: Direction, ids: np.ndarray) -> tuple[np.ndarray, int]:
    """Count lists that the sample visits before those of (q, k) ids, up to the number returned."""
    lists = InvertedLists.load(stages.work, direction.index)
    asked = np.asarray(stages.work.load("queries")[direction.query])
    probed = nearest_lists(asked, lists.centroids, MAX_NPROBE)
    visited = lists.list_of(ids)[:, :, None] == probed[:, None, :]
    most = probed.shape[1]
    return np.where(visited.any(axis=2), visited.argmax(axis=2), most), most


def _draw(rows: int, wanted: int, rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.choice(rows, min(wanted, rows), replace=False))
