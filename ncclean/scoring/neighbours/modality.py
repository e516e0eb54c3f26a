"""One modality searched: its near-duplicate groups, its neighbours, and the other's candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ncclean.scoring.neighbours.distinct import Distinct
from ncclean.scoring.neighbours.groups import (
    GROUPING_EFFORT,
    group_by_components,
    group_by_representative,
)
from ncclean.scoring.neighbours.index import (
    TIE,
    Found,
    IndexKind,
    Tuned,
    VectorIndex,
    exact_cosines,
)
from ncclean.scoring.neighbours.matrix import EmbeddingMatrix, Tick

_SAMPLE = 1000

Begin = Callable[[str, int], None]  # told the name of a stage and how many rows it has


@dataclass(frozen=True)
class Modality:
    """The images or the captions of a corpus."""

    name: str
    matrix: EmbeddingMatrix
    distinct: Distinct


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """`kind` as `--index` takes it; `threshold` is the cosine from which rows are duplicates."""

    kind: str
    k: int
    threshold: float
    linkage: str
    recall: float
    seed: int


@dataclass(frozen=True)
class Searched:
    """Over the u distinct rows of a modality, and per pair (n,) where said so.

    `representative` (u,) names the distinct row that stands for a row's group, `near` its k
    nearest other distinct rows, `across` the k distinct rows nearest to each distinct row of the
    other modality (None where the index is exact: all pairs are compared then), `nearest` (n,)
    the cosine with the nearest other pair, NaN without any.
    """

    representative: np.ndarray
    near: Found
    across: Found | None
    nearest: np.ndarray
    description: str
    recall: float
    across_recall: float
    duplicate_recall: float


def search_modality(
    here: Modality, there: Modality, options: SearchOptions, begin: Begin, tick: Tick
) -> Searched:
    """Index the distinct rows of `here`, group them, and search them with both modalities."""
    rows, others = here.distinct.first, there.distinct.first
    kind = IndexKind.choose(options.kind, len(here.matrix))
    begin(f"building the {here.name} index", 0)
    index = VectorIndex(kind, here.matrix, rows, options.seed)
    begin(f"grouping {here.name} duplicates", len(rows))
    representative = group_by_representative(here.matrix, rows, index, options.threshold, tick)
    sample = _sample(len(rows), options.seed)
    queries = here.matrix.take(rows[sample])
    k = min(options.k, len(rows) - 1)
    if kind is IndexKind.FLAT:
        within, duplicate_recall = Tuned(0, 1.0), 1.0
    else:
        begin(f"measuring the recall of the {here.name} index", 0)
        truth = exact_cosines(here.matrix, rows, queries, k + 1)
        within = index.tune(queries, truth, options.recall)
        duplicate_recall = _duplicate_recall(index, queries, truth, options.threshold)
    begin(f"searching {here.name} neighbours", len(rows))
    with_self = index.search_all(here.matrix, rows, k + 1, within.effort, tick)
    near = without_self(with_self)
    if options.linkage == "components":
        representative = group_by_components(near, options.threshold)
    across, across_tuned = None, Tuned(0, 1.0)
    if kind is not IndexKind.FLAT:
        begin(f"measuring the recall of the {here.name} index", 0)
        queries = there.matrix.take(others[_sample(len(others), options.seed)])
        truth = exact_cosines(here.matrix, rows, queries, min(options.k, len(rows)))
        across_tuned = index.tune(queries, truth, options.recall)
        begin(f"searching {here.name} by {there.name}", len(others))
        across = index.search_all(
            there.matrix, others, min(options.k, len(rows)), across_tuned.effort, tick
        )
    return Searched(
        representative=representative,
        near=near,
        across=across,
        nearest=_nearest(here.distinct, near),
        description=index.describe(within, across_tuned),
        recall=within.recall,
        across_recall=across_tuned.recall,
        duplicate_recall=duplicate_recall,
    )


def without_self(found: Found) -> Found:
    """(u, k + 1) neighbours of u rows among themselves -> (u, k) without the row itself.

    A row that is not among its own neighbours loses the last one.
    """
    count, width = found.ids.shape
    itself = found.ids == np.arange(count)[:, None]
    drop = np.where(itself.any(axis=1), itself.argmax(axis=1), width - 1)
    keep = np.ones_like(itself)
    keep[np.arange(count), drop] = False
    shape = (count, width - 1)
    return Found(found.cosines[keep].reshape(shape), found.ids[keep].reshape(shape))


def _nearest(distinct: Distinct, near: Found) -> np.ndarray:
    """1 for pairs with a copy, else the cosine with the nearest distinct row."""
    closest = np.full(len(distinct), np.nan, dtype=np.float32)
    if near.ids.shape[1]:
        closest = np.where(near.ids[:, 0] >= 0, near.cosines[:, 0], np.nan).astype(np.float32)
    closest[distinct.sizes > 1] = 1.0
    return closest[distinct.labels]


def _duplicate_recall(
    index: VectorIndex, queries: np.ndarray, truth: np.ndarray, threshold: float
) -> float:
    """Of the sampled rows with a near-duplicate, the share that a grouping search finds one for.

    The first neighbour is the row itself. NaN if no sampled row has a near-duplicate.
    """
    has_one = truth[:, 1] >= threshold - TIE
    if not has_one.any():
        return float("nan")
    found = index.search(queries[has_one], 2, GROUPING_EFFORT)
    return float((found.cosines[:, 1] >= threshold - TIE).mean())


def _sample(rows: int, seed: int) -> np.ndarray:
    wanted = min(_SAMPLE, rows)
    return np.sort(np.random.default_rng(seed).choice(rows, wanted, replace=False))
