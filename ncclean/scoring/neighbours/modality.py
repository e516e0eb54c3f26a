"""One modality: its near-duplicate groups, its neighbours, and candidates for the other one."""

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
    IndexKind,
    Nearest,
    Tuned,
    VectorIndex,
    exact_cosines,
)
from ncclean.scoring.neighbours.matrix import CHUNK_ROWS, EmbeddingMatrix, Rows, Tick
from ncclean.scoring.neighbours.whitening import Whitened

_SAMPLE = 1000

Begin = Callable[[str, int], None]  # told the name of a stage and how many rows it has


def unannounced(text: str, total: int) -> None:
    """A `Begin` that tells nobody."""


@dataclass(frozen=True)
class Modality:
    """The images or the captions of a corpus."""

    name: str
    matrix: EmbeddingMatrix
    distinct: Distinct


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """`kind` as `--index` takes it; rows are duplicates from the cosine `threshold` on."""

    kind: str
    k: int
    threshold: float
    whiten: bool
    linkage: str
    recall: float
    seed: int


@dataclass(frozen=True)
class Grouped:
    """Near-duplicates among the u distinct rows of a modality.

    `representative` (u,) names the row that stands for a row's group, `similarity` (u,) is the
    cosine with it. `recall` is the share of sampled rows with a near-duplicate for which a search
    as the grouping does it finds one, NaN if the sample has none.
    """

    representative: np.ndarray
    similarity: np.ndarray
    recall: float


@dataclass(frozen=True)
class Searched:
    """Neighbours of the u distinct rows of a modality.

    `near` are the k nearest other distinct rows, `across` the k distinct rows nearest to each
    distinct row of the other modality; None where the index is exact: all pairs are compared then.
    """

    near: Nearest
    across: Nearest | None
    description: str
    recall: float
    across_recall: float


def group_modality(here: Modality, options: SearchOptions, begin: Begin, tick: Tick) -> Grouped:
    """Group the distinct rows of `here`, whitened if the options say so."""
    rows = here.distinct.first
    begin(f"building the {here.name} duplicate index", 0)
    space = Whitened(here.matrix, rows, options.seed) if options.whiten else here.matrix
    kind = IndexKind.choose(options.kind, len(here.matrix))
    index = VectorIndex(kind, space, rows, options.seed)
    begin(f"grouping {here.name} duplicates", len(rows))
    representative = group_by_representative(space, rows, index, options.threshold, tick)
    recall = 1.0
    if kind is not IndexKind.FLAT:
        begin(f"measuring the recall of the {here.name} duplicates", 0)
        queries = space.take(rows[_sample(len(rows), options.seed)])
        recall = _duplicate_recall(index, space, rows, queries, options.threshold)
    if options.linkage == "components":
        begin(f"connecting {here.name} duplicates", len(rows))
        k = min(options.k, len(rows) - 1) + 1
        nearest = index.search_all(space, rows, k, GROUPING_EFFORT, tick)
        representative = group_by_components(without_self(nearest), options.threshold)
    similarity = np.ones(len(rows), dtype=np.float32)
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        pairs = space.take(rows[chunk]), space.take(rows[representative[chunk]])
        similarity[chunk] = np.einsum("nd,nd->n", *pairs)
    return Grouped(representative, similarity, recall)


def search_modality(
    here: Modality, there: Modality, options: SearchOptions, begin: Begin, tick: Tick
) -> Searched:
    """Index the distinct rows of `here`, and search them with both modalities."""
    rows, others = here.distinct.first, there.distinct.first
    kind = IndexKind.choose(options.kind, len(here.matrix))
    begin(f"building the {here.name} index", 0)
    index = VectorIndex(kind, here.matrix, rows, options.seed)
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = np.arange(start, min(start + CHUNK_ROWS, len(rows)))
        index.add(here.matrix.take(rows[chunk]), chunk)
    k = min(options.k, len(rows) - 1)

    def tuned(queries: np.ndarray, wanted: int) -> Tuned:
        if kind is IndexKind.FLAT:
            return Tuned(0, 1.0)
        begin(f"measuring the recall of the {here.name} index", 0)
        truth = exact_cosines(here.matrix, rows, queries, wanted)
        return index.tune(queries, truth, options.recall)

    within = tuned(here.matrix.take(rows[_sample(len(rows), options.seed)]), k + 1)
    begin(f"searching {here.name} neighbours", len(rows))
    near = without_self(index.search_all(here.matrix, rows, k + 1, within.effort, tick))
    if kind is IndexKind.FLAT:
        return Searched(near, None, index.describe(within, within), 1.0, 1.0)
    candidates = min(options.k, len(rows))
    across = tuned(there.matrix.take(others[_sample(len(others), options.seed)]), candidates)
    begin(f"searching {here.name} by {there.name}", len(others))
    nearest = index.search_all(there.matrix, others, candidates, across.effort, tick)
    return Searched(near, nearest, index.describe(within, across), within.recall, across.recall)


def without_self(nearest: Nearest) -> Nearest:
    """(u, k + 1) neighbours of u rows among themselves -> (u, k) without the row itself.

    A row that is not among its own neighbours loses the last one.
    """
    count, width = nearest.ids.shape
    itself = nearest.ids == np.arange(count)[:, None]
    drop = np.where(itself.any(axis=1), itself.argmax(axis=1), width - 1)
    keep = np.ones_like(itself)
    keep[np.arange(count), drop] = False
    shape = (count, width - 1)
    return Nearest(nearest.cosines[keep].reshape(shape), nearest.ids[keep].reshape(shape))


def _duplicate_recall(
    index: VectorIndex, space: Rows, rows: np.ndarray, queries: np.ndarray, threshold: float
) -> float:
    """See `Grouped`. The first neighbour of a row is the row itself."""
    if len(rows) < 2:
        return float("nan")
    has_one = exact_cosines(space, rows, queries, 2)[:, 1] >= threshold
    if not has_one.any():
        return float("nan")
    nearest = index.search(queries[has_one], 2, GROUPING_EFFORT)
    # The index holds float16, which moves cosines at the threshold itself.
    return float((nearest.cosines[:, 1] >= threshold - 1e-3).mean())


def _sample(rows: int, seed: int) -> np.ndarray:
    wanted = min(_SAMPLE, rows)
    return np.sort(np.random.default_rng(seed).choice(rows, wanted, replace=False))
