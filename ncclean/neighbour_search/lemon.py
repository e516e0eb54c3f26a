"""LEMoN: measure whether a pair agrees with its neighbours.

Zhang et al. 2025 (ICML; arXiv 2407.18941), "LEMoN: Label Error Detection using Multimodal
Neighbors". With d = 1 - cosine, x the image and y the caption of a pair,

    score = d(x, y) + beta s_n + gamma s_m
    s_n   = 1/k sum_j d(y, y_j) exp(-tau_1 d(x, x_j)) exp(-tau_2 d(x_j, y_j))

over the k images x_j nearest to x, and s_m alike with image and caption exchanged. A caption far
from the captions of similar images speaks against a pair, the more so the better those pairs match
themselves. Higher is noisier. The defaults are the paper's fixed hyper-parameters, for use without
labels.

Copies of a pair, near-duplicates by image and by text, are excluded: they would agree with it
whether it is right or wrong. The sums are divided by the number of remaining neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import faiss
import numpy as np

from ncclean.neighbour_search.corpus import Direction, Distinct
from ncclean.neighbour_search.inverted_lists import InvertedLists, Nearest, nearest_of
from ncclean.neighbour_search.stages import chunks
from ncclean.storage.array_files import ArrayFolder

_BLOCK_ROWS, _BLOCK_VALUES = 4096, 1 << 26  # pairs at a time, and 256 MB of their neighbours


@dataclass(frozen=True, kw_only=True)
class LemonParameters:
    """Parameters of LEMoN: `k` neighbours, weights beta and gamma, and decays tau_1 and tau_2."""

    k: int = 30
    beta: float = 5.0
    gamma: float = 5.0
    tau_1: float = 0.1
    tau_2: float = 5.0


def lemon_score(
    own: np.ndarray, image_term: np.ndarray, text_term: np.ndarray, parameters: LemonParameters
) -> np.ndarray:
    """Return (n,) LEMoN scores d(x, y) + beta s_n + gamma s_m; NaN if a pair has no neighbours.

    d(x, y) is 1 minus the pair's cosine; s_n and s_m are the terms of `disagreement`.
    """
    return (1 - own) + parameters.beta * image_term + parameters.gamma * text_term


def disagreement(
    pairs: np.ndarray,
    queries: np.ndarray,
    nearest: Nearest,
    distinct: Distinct,
    other: Callable[[np.ndarray], np.ndarray],
    own: np.ndarray,
    copies: Sequence[np.ndarray],
    dim: int,
    parameters: LemonParameters,
) -> np.ndarray:
    """Return (p,) LEMoN terms: s_n if `nearest` are neighbours by image, s_m if by caption.

    s_n = 1/k sum_j d(y, y_j) exp(-tau_1 d(x, x_j)) exp(-tau_2 d(x_j, y_j)) over the neighbours x_j,
    with d = 1 - cosine; NaN without neighbours. `nearest` has a row for each of the (q,) ascending
    `queries`, distinct rows of its modality that include those of the pairs. `other` reads (m, d)
    float32 vectors of (m,) pairs in the other modality, `own` (n,) are the pairs' cosines. Each of
    `copies` labels (n,) pairs: neighbours with the pair's label, its copies, are left out.
    """
    terms, k = np.empty(len(pairs), dtype=np.float32), parameters.k
    rows_at_a_time = min(_BLOCK_ROWS, max(1, _BLOCK_VALUES // ((k + 1) * max(dim, k))))
    for some in chunks(len(pairs), rows_at_a_time):
        block = pairs[some]
        rows = np.searchsorted(queries, distinct.labels[block])
        near, cosines = neighbour_pairs(
            nearest.ids[rows], nearest.cosines[rows], distinct, block, k
        )
        valid = near >= 0
        for labels in copies:
            valid &= labels[near] != labels[block, None]
        distances = 1 - _cosines(other, block, near)
        weight = np.exp(-parameters.tau_1 * (1 - cosines) - parameters.tau_2 * (1 - own[near]))
        total = np.where(valid, weight * distances, 0.0).sum(axis=1)
        count = valid.sum(axis=1)
        means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        terms[some] = means
    return terms


def _cosines(
    other: Callable[[np.ndarray], np.ndarray], pairs: np.ndarray, near: np.ndarray
) -> np.ndarray:
    """Return (b, k) float32 cosines of (b,) pairs with (b, k) others, any value if one is missing.

    Vectors that several of them need, as nearby pairs do, are read once.
    """
    rows, place = np.unique(np.concatenate([pairs, near.ravel()]), return_inverse=True)
    vectors = other(rows)
    of_pairs = np.repeat(place[: len(pairs)], near.shape[1])
    cosines = np.empty(near.shape, np.float32)
    arrays = (vectors, of_pairs, vectors, np.ascontiguousarray(place[len(pairs) :]), cosines)
    faiss.pairwise_indexed_inner_product(  # type: ignore[attr-defined,unused-ignore]
        vectors.shape[1], near.size, *map(faiss.swig_ptr, arrays)
    )
    return cosines


def neighbour_pairs(
    near_ids: np.ndarray, near_cosines: np.ndarray, distinct: Distinct, pairs: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest other pairs of b pairs: (b, k) numbers, -1 if missing, and cosines.

    `near_ids` and `near_cosines` (b, m) are the nearest distinct rows of each pair's own.

    The members of the own class come first, then those of the nearest classes. From a class too
    large to be used whole, the members after the pair's own position are used, cyclically, so that
    not all use the same few.
    """
    own = distinct.labels[pairs]
    classes = np.concatenate([own[:, None], near_ids], axis=1)
    cosines = np.concatenate([np.ones((len(pairs), 1), np.float32), near_cosines], axis=1)
    sizes = np.where(classes >= 0, distinct.starts[classes + 1] - distinct.starts[classes], 0)
    sizes[:, 0] -= 1
    ends = np.cumsum(np.minimum(sizes, k), axis=1)
    slots = np.arange(k)
    place = (ends[:, None, :] <= slots[None, :, None]).sum(axis=2)
    missing = place == classes.shape[1]
    place[missing] = 0
    before = np.take_along_axis(ends - np.minimum(sizes, k), place, axis=1)
    chosen = np.take_along_axis(classes, place, axis=1)
    turn = slots[None] - before + distinct.positions[pairs][:, None] + (place == 0)
    whole = np.maximum(distinct.starts[chosen + 1] - distinct.starts[chosen], 1)
    near = distinct.members[distinct.starts[chosen] + turn % whole]
    near[missing] = -1
    return near, np.take_along_axis(cosines, place, axis=1)


def lemon_block(work: ArrayFolder, number: int, side: str, k: int) -> None:
    """Write LEMoN's term in one modality, for the pairs searched by one task, to a file."""
    other = "text" if side == "image" else "image"
    shared, distinct = work.load("pair-groups"), Distinct.load(work, side)
    queries, nearest = nearest_of(work, Direction(side, side), number)
    # List by list, so that consecutive pairs have neighbours in common.
    by_list = np.argsort(InvertedLists.load(work, side).place[queries])
    pairs = distinct.rows_of(queries[by_list])
    lists, labels = InvertedLists.load(work, other), Distinct.load(work, other).labels

    def vectors(rows: np.ndarray) -> np.ndarray:
        return lists.take(labels[rows])

    terms = disagreement(
        pairs, queries, nearest, distinct, vectors, work.load("own")["own"],
        [shared["pair"], shared["same_image"]], lists.vectors.shape[1], LemonParameters(k=k),
    )  # fmt: skip
    work.save(f"lemon-{side}-{number}", {"rows": pairs, side: terms})
