"""Group near-duplicates.

A row is compared with earlier rows in the lists nearest to it. Rows connected by near-duplicates
are a component; within it, by default, every member of a group reaches the threshold with the
group's representative, its first member in input order. Components alone would chain: on a corpus
of similar images a is near b and b near c, until one group spans unrelated things. No two
representatives of a component reach the threshold, and every dropped row is near a kept one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ncclean.neighbour_search.corpus import Direction
from ncclean.neighbour_search.inverted_lists import TIE, InvertedLists, NearestHeap, nearest_of
from ncclean.neighbour_search.stages import VALUES, DisjointSets, Stages, chunks
from ncclean.neighbour_search.whitening import whitened
from ncclean.storage.array_files import ArrayFolder

# Cosine from which two are near-duplicates, by modality, in the whitened space and in the model's.
# docs/neighbours.md has the shares found and wrongly found.
THRESHOLDS = {"image": {True: 0.80, False: 0.96}, "text": {True: 0.90, False: 0.98}}
# Whitening emphasises directions in which a corpus varies little. Images this close in the model's
# own space are near-duplicates even if they differ there, unless a threshold is given.
SAME_IMAGE_COSINE = 0.98
# Near-duplicates are in the same or an adjacent list, so few need to be visited.
GROUPING_EFFORT = 12
_PRODUCTS = 1 << 20  # at a time, all of which may reach the threshold
_QUERIES = 512
_PAIRS = 1 << 20  # held before they are reduced
_TASK_ROWS = 1 << 15  # in components that a task groups
_CHUNK = 2048  # rows of a component
_ANY = -2.0  # less than any cosine


def group_side(
    stages: Stages, side: str, name: str, tasks: list[slice], threshold: float, linkage: str,
    effort: int,
) -> None:  # fmt: skip
    """Group the near-duplicates among distinct images or captions; write them to the file `name`.

    For each distinct row, it has the representative of its group and the cosine with it. `tasks`
    are the rows of each task, `effort` is the number of lists that a row visits.
    """
    if stages.has(name):
        return
    count = len(stages.work.load(f"by-list-{side}")["row"])
    arguments = [(side, rows, threshold, effort) for rows in tasks]
    text = f"comparing {side} near-duplicates"
    names = stages.run(text, f"pairs-{side}", find_duplicates, arguments)
    if not stages.has(f"components-{side}"):
        shape = (count,), np.int32
        with stages.work.scratch({"parent": shape, "size": shape}) as arrays:
            sets = DisjointSets(arrays["parent"])
            for file in map(stages.work.load, names):
                sets.join(file["one"], file["other"])
            sets.finish()
            stages.first_rows("parent", arrays["parent"], arrays["size"], **arrays)
            query = "SELECT row, parent FROM numbered WHERE size > 1 ORDER BY parent, row"
            stages.select(f"components-{side}", query, **arrays)
    starts = component_starts(stages.work, side)
    begins = np.arange(0, starts[-1], _TASK_ROWS)
    bounds = np.unique([*np.searchsorted(starts, begins), len(starts) - 1])
    components = [
        (side, slice(*ends), threshold, linkage) for ends in itertools.pairwise(bounds.tolist())
    ]
    text = f"grouping {side} near-duplicates"
    names = stages.run(text, f"grouped-{side}", group_components, components)
    shapes = {"representative": ((count,), np.int32), "similarity": ((count,), np.float32)}
    with stages.writing(name, shapes) as groups:
        for rows in chunks(count, VALUES):
            groups["representative"][rows] = np.arange(rows.start, rows.stop)
            groups["similarity"][rows] = 1
        for file in map(stages.work.load, names):
            for column, values in groups.items():
                values[file["members"]] = file[column]


def component_starts(work: ArrayFolder, side: str) -> np.ndarray:
    """Return where each connected component starts among the rows with near-duplicates.

    The last number is that of the rows.
    """
    parent = work.load(f"components-{side}")["parent"]
    return np.append(np.flatnonzero(np.diff(parent, prepend=-1)), len(parent))


def find_duplicates(
    work: ArrayFolder, number: int, side: str, rows: slice, threshold: float, effort: int
) -> None:
    """Find the near-duplicates of consecutive rows in the order of lists; write a spanning forest.

    The forest has an edge between two rows only if their cosine reaches `threshold`.
    """
    lists = InvertedLists.load(work, side)
    learnt, vectors, ids = work.load("learnt"), lists.read(rows), lists.ids[rows]
    queries = whitened(learnt, side, vectors)
    edges, edge_count = np.empty((2, 0), np.int64), 0
    pairs = [edges]
    for members, visiting in lists.probed(vectors, effort):
        listed, member_ids = whitened(learnt, side, lists.read(members)), lists.ids[members]
        visiting = visiting[np.argsort(ids[visiting])]
        for some in chunks(len(visiting), max(min(_PRODUCTS // len(member_ids), _QUERIES), 1)):
            query_rows = visiting[some]
            # A list's ids ascend: those after the last query's are compared by their own queries.
            earlier = listed[: np.searchsorted(member_ids, ids[query_rows[-1]])]
            products = queries[query_rows] @ earlier.T
            row, place = np.divmod(np.flatnonzero(products >= threshold - TIE), len(earlier) or 1)
            one, other = ids[query_rows[row]], member_ids[place]
            pairs.append(np.stack([one, other])[:, one > other])
            edge_count += pairs[-1].shape[1]
            if edge_count > _PAIRS:
                pairs = [_spanning(np.concatenate(pairs, axis=1))]
                edge_count = pairs[0].shape[1]
    one, other = _spanning(np.concatenate(pairs, axis=1))
    work.save(f"pairs-{side}-{number}", {"one": one, "other": other})


def _spanning(pairs: np.ndarray) -> np.ndarray:
    """Return (2, c) pairs of each row with the first that (2, p) pairs connect it to."""
    rows, places = np.unique(pairs, return_inverse=True)
    places = places.reshape(pairs.shape)
    shape = (len(rows), len(rows))
    graph = coo_array((np.ones(pairs.shape[1], np.bool_), tuple(places)), shape=shape)
    _, label = connected_components(graph, directed=False)
    first = rows[np.unique(label, return_index=True)[1]][label]
    return np.stack([rows, first])[:, rows != first]


def group_components(
    work: ArrayFolder, number: int, side: str, components: slice, threshold: float, linkage: str
) -> None:
    """Group the rows of some connected components; write each row's representative and cosine."""
    lists = InvertedLists.load(work, side)
    learnt = work.load("learnt")
    ends = component_starts(work, side)[components.start : components.stop + 1].tolist()
    members = work.load(f"components-{side}")["row"][ends[0] : ends[-1]]
    representative, similarity = members.copy(), np.ones(len(members), np.float32)
    for begin, end in itertools.pairwise(ends):
        own_rows = slice(begin - ends[0], end - ends[0])
        of_component = members[own_rows]

        def read(rows: slice | np.ndarray, ids: np.ndarray = of_component) -> np.ndarray:
            return whitened(learnt, side, lists.take(ids[rows]))

        limit = threshold - TIE if linkage == "representative" else _ANY
        places, similarity[own_rows] = leaders(read, len(of_component), limit)
        representative[own_rows] = of_component[places]
    work.save(
        f"grouped-{side}-{number}",
        {"members": members, "representative": representative, "similarity": similarity},
    )


def leaders(
    read: Callable[[slice | np.ndarray], np.ndarray], count: int, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """Group n vectors greedily; return the representative of each, and (n,) cosines with it.

    A vector gets the most similar of the earlier representatives that reach the threshold, and
    becomes one itself, with a cosine of 1, if none does. `read` reads unit vectors of some rows.
    """
    best, cosines = np.arange(count), np.ones(count, np.float32)
    places = np.empty(0, np.int64)
    for rows in chunks(count, _CHUNK):
        vectors = read(rows)
        heap = NearestHeap(vectors, 1)
        for piece in chunks(len(places), _CHUNK):
            heap.add(read(places[piece]), places[piece])
        earlier = heap.nearest()
        products = vectors @ vectors.T
        new: list[int] = []
        for row in np.flatnonzero(earlier.cosines[:, 0] < threshold).tolist():
            if not (products[row, new] >= threshold).any():
                new.append(row)
        chosen = np.array(new, np.int64)
        is_later = np.arange(len(vectors))[:, None] > chosen
        similar = np.where(is_later, products[:, chosen], -np.inf)
        similar = np.concatenate([earlier.cosines, similar], axis=1)
        nearest = similar.argmax(axis=1)
        numbers = rows.start + chosen
        best[rows] = np.where(nearest > 0, np.append(-1, numbers)[nearest], earlier.ids[:, 0])
        cosines[rows] = similar.max(axis=1)
        best[numbers], cosines[numbers] = numbers, 1
        places = np.append(places, numbers)
    return best, cosines


def join_single_images(stages: Stages, tasks: int) -> None:
    """Add images without near-duplicates to a group if they match in the model's own space.

    That is, without whitening, with the representative of the group.
    """
    if stages.has("groups-image"):
        return
    before = stages.work.load("leaders-image")
    shapes = {name: (array.shape, array.dtype) for name, array in before.items()}
    numbers = dict.fromkeys(("first", "size"), shapes["representative"])
    near: list[np.ndarray] = [np.empty((3, 0))]
    with stages.work.scratch(numbers) as scratch, stages.writing("groups-image", shapes) as groups:
        for name, array in before.items():
            groups[name][:] = array
        stages.first_rows("representative", scratch["first"], scratch["size"], **before)
        for number in range(tasks):
            queries, (cosines, ids) = nearest_of(stages.work, Direction("image", "image"), number)
            is_near = (cosines >= SAME_IMAGE_COSINE) & (ids < queries[:, None]) & (ids >= 0)
            row, place = np.nonzero(is_near & (scratch["size"][queries] == 1)[:, None])
            near.append(np.stack([queries[row], -cosines[row, place], ids[row, place]]))
        later, minus, earlier = np.concatenate(near, axis=1)
        order = np.lexsort((minus, later))
        joined = join_single_rows(
            groups["representative"], scratch["size"], later[order], earlier[order]
        )
        lists = InvertedLists.load(stages.work, "image")
        learnt = stages.work.load("learnt")
        for some in chunks(len(joined)):
            single = joined[some]
            pairs = (single, groups["representative"][single])
            sides = (whitened(learnt, "image", lists.take(ids)) for ids in pairs)
            groups["similarity"][single] = np.einsum("nd,nd->n", *sides)


def join_single_rows(
    representative: np.ndarray, sizes: np.ndarray, later: np.ndarray, earlier: np.ndarray
) -> np.ndarray:
    """Add rows without near-duplicates to a group that is near them in another space.

    Row `later` (c,) is near row `earlier` (c,) there, ordered by `later`, the most similar first. A
    row joins the first of these that is a representative, so every member stays near the first of
    its group. Changes `representative` (u,); `sizes` (u,) are those of each row's group before.
    Returns the rows that joined a group.
    """
    joined = []
    for row, other in np.stack([later, earlier], axis=1).astype(np.int64).tolist():
        is_alone = sizes[row] == 1 and representative[row] == row
        if is_alone and representative[other] == other:
            representative[row] = other
            joined.append(row)
    return np.array(joined, np.int64)
