"""Partners that fit better than the own one, over the whole corpus.

A caption of another pair that fits an image better than its own is what contrastive training
takes for a negative although it matches: a false negative. For a mismatched pair there are
thousands. Pairs that are near-duplicates of a pair, by image or by text, are no rivals of it: their
captions are captions of the same image, or the same caption. Ties are no rivals either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ncclean.scoring.neighbours.distinct import Distinct
from ncclean.scoring.neighbours.index import TIE, Found
from ncclean.scoring.neighbours.matrix import EmbeddingMatrix, Tick, silent

_BLOCK_ROWS = 1024
_COLUMN_ROWS = 8192


@dataclass(frozen=True)
class Rivals:
    """(n,) int32 counts of other pairs whose caption fits the image better, and vice versa."""

    captions: np.ndarray
    images: np.ndarray

    @property
    def mutual_nearest(self) -> np.ndarray:
        """(n,) bool: neither has a rival. DisNCL's filter with the corpus as its batch."""
        return (self.captions == 0) & (self.images == 0)


def count_rivals(
    image: EmbeddingMatrix,
    text: EmbeddingMatrix,
    own: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    tick: Tick = silent,
) -> Rivals:
    """Compare every image with every caption; exact, n^2 d operations and little memory.

    `own` (n,) are the cosines of the pairs, the groups (n,) any labels of near-duplicates.
    """
    captions, images = np.zeros(len(own), np.int32), np.zeros(len(own), np.int32)
    for top, rows in image.chunks(_BLOCK_ROWS):
        here = slice(top, top + len(rows))
        for left, columns in text.chunks(_COLUMN_ROWS):
            there = slice(left, left + len(columns))
            cosines = rows @ columns.T
            for counts, bound, axis in (
                (captions[here], own[here, None], 1),
                (images[there], own[None, there], 0),
            ):
                better = cosines > bound + TIE
                better &= image_group[here, None] != image_group[None, there]
                better &= text_group[here, None] != text_group[None, there]
                counts += better.sum(axis=axis, dtype=np.int32)
        tick(here.stop)
    return Rivals(captions, images)


def count_found_rivals(
    found: Found,
    queries: Distinct,
    candidates: Distinct,
    own: np.ndarray,
    query_group: np.ndarray,
    candidate_group: np.ndarray,
) -> np.ndarray:
    """(n,) rivals among the candidates that a search found: a lower bound.

    `found` has a row for each distinct query and names distinct candidates. The groups (n,) are
    those of the pairs, in the queries' modality and in the candidates'.
    """
    # Pairs of the query's own group that hold the candidate are no rivals. How many there are is
    # looked up among all combinations of group and candidate.
    width = len(candidates) + 1
    held, times = np.unique(
        query_group.astype(np.int64) * width + candidates.labels, return_counts=True
    )
    counts = np.empty(len(own), dtype=np.int32)
    for start in range(0, len(own), _COLUMN_ROWS):
        here = slice(start, start + _COLUMN_ROWS)
        row = queries.labels[here]
        ids = found.ids[row]
        better = (found.cosines[row] > own[here, None] + TIE) & (ids >= 0)
        better &= candidate_group[candidates.first[ids]] != candidate_group[here, None]
        keys = query_group[here, None].astype(np.int64) * width + ids
        place = np.minimum(np.searchsorted(held, keys), len(held) - 1)
        same_group = np.where(held[place] == keys, times[place], 0)
        counts[here] = (better * (candidates.sizes[ids] - same_group)).sum(axis=1)
    return counts
