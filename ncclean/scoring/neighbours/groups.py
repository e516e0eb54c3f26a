"""Near-duplicate groups.

By default every member of a group reaches the threshold with the group's representative, its
first member in input order. Groups of connected pairs alone would chain: on a corpus of similar
images a is near b and b near c, until one group spans things that have nothing in common. Among
the representatives no two reach the threshold, so a corpus that keeps one pair of each group has
no near-duplicates left, and nothing was dropped that is not near what was kept.
"""

from __future__ import annotations

import numpy as np

from ncclean.scoring.neighbours.distinct import Distinct
from ncclean.scoring.neighbours.index import TIE, Nearest, VectorIndex
from ncclean.scoring.neighbours.matrix import Rows, Tick, silent

_BLOCK_ROWS = 1024
# Near-duplicates lie in the same or an adjacent list, so few need to be visited.
GROUPING_EFFORT = 16


def group_by_representative(
    vectors: Rows,
    rows: np.ndarray,
    index: VectorIndex,
    threshold: float,
    tick: Tick = silent,
    block_rows: int = _BLOCK_ROWS,
) -> np.ndarray:
    """(u,) for each of the given (u,) rows, the number of its representative, maybe itself.

    Rows are taken in order. One joins the most similar representative so far if their cosine
    reaches `threshold`, and else becomes one. `index` must be empty; it holds all rows at the end,
    under their numbers from 0 to u - 1.
    """
    representative = np.arange(len(rows), dtype=np.int64)
    for start in range(0, len(rows), block_rows):
        block = vectors.take(rows[start : start + block_rows])
        best = np.full(len(block), -np.inf, dtype=np.float32)
        who = np.arange(start, start + len(block))
        if len(index):
            nearest = index.search(block, 1, GROUPING_EFFORT)
            best = np.where(nearest.ids[:, 0] >= 0, nearest.cosines[:, 0], best)
            who = np.where(nearest.ids[:, 0] >= 0, nearest.ids[:, 0], who)
        _assign_block(block @ block.T, best, who, start, threshold)
        representative[start : start + len(block)] = who
        chosen = who == np.arange(start, start + len(block))
        index.add(block[chosen], start + np.flatnonzero(chosen))
        tick(start + len(block))
    joined = np.flatnonzero(representative != np.arange(len(rows)))
    for start in range(0, len(joined), block_rows):
        chunk = joined[start : start + block_rows]
        index.add(vectors.take(rows[chunk]), chunk)
    return representative


def _assign_block(
    cosines: np.ndarray, best: np.ndarray, who: np.ndarray, start: int, threshold: float
) -> None:
    """Fill `who` for a block: rows that join none become representatives of later ones."""
    for row in range(len(cosines)):
        if best[row] >= threshold - TIE:
            continue
        who[row] = start + row
        later = cosines[row, row + 1 :]
        closer = later > best[row + 1 :]
        best[row + 1 :][closer] = later[closer]
        who[row + 1 :][closer] = start + row


def join_single_rows(representative: np.ndarray, near: Nearest, threshold: float) -> np.ndarray:
    """(u,) representatives, where rows that are alone have joined an earlier one in another space.

    `near` are the neighbours there. A row joins the most similar representative before it that is
    among them and reaches `threshold`, so every member still is near the first of its group.
    """
    joined = representative.copy()
    alone = np.bincount(representative, minlength=len(representative)) == 1
    edges = (near.cosines >= threshold) & (near.ids >= 0)
    for row in np.flatnonzero(alone & edges.any(axis=1)):
        for other in near.ids[row][edges[row]]:
            if other < row and joined[other] == other:
                joined[row] = other
                break
    return joined


def group_by_components(nearest: Nearest, threshold: float) -> np.ndarray:
    """(u,) first member of each row's connected component of neighbours above the threshold.

    Groups chain. An edge needs one of both rows among the k nearest of the other.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, k = nearest.ids.shape
    rows = np.repeat(np.arange(count), k)
    edge = ((nearest.cosines >= threshold - TIE) & (nearest.ids >= 0)).ravel()
    ends = (rows[edge], nearest.ids.ravel()[edge])
    graph = coo_array((np.ones(edge.sum(), dtype=np.int8), ends), shape=(count, count))
    _, component = connected_components(graph, directed=False)
    classes = Distinct.of(component)
    first: np.ndarray = classes.first[classes.labels]
    return first


def pair_labels(distinct: Distinct, representative: np.ndarray) -> np.ndarray:
    """(n,) group of each pair as the row of its group's first pair; singletons name themselves."""
    first: np.ndarray = distinct.first[representative[distinct.labels]]
    return first


def joint_labels(image: np.ndarray, text: np.ndarray) -> np.ndarray:
    """(n,) groups of pairs that share both the image and the text group, by their first pair."""
    _, first, inverse = np.unique(
        image.astype(np.int64) * len(image) + text, return_index=True, return_inverse=True
    )
    labels: np.ndarray = first[inverse.reshape(-1)]
    return labels
