"""Partners that fit better than the own one, over the whole corpus.

A caption of another pair that fits an image better than its own is what contrastive training
takes for a negative although it matches: a false negative. For a mismatched pair there are
thousands. Near-duplicates of a pair, by image or by text, are not counted: their captions are
captions of the same image, or the same caption. Nor are ties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ncclean.neighbour_search.chunked import chunks
from ncclean.neighbour_search.copies import Distinct
from ncclean.neighbour_search.inverted_lists import TIE, Nearest

_BLOCK_ROWS = 1024
_COLUMN_ROWS = 8192


@dataclass(frozen=True)
class BetterMatches:
    """(n,) int32 counts of other pairs whose caption fits the image better, and vice versa."""

    captions: np.ndarray
    images: np.ndarray

    def mutual_nearest(self, rows: slice = slice(None)) -> np.ndarray:
        """(m,) bool: whether neither side has a better match in the corpus (DisNCL's filter)."""
        neither: np.ndarray = (self.captions[rows] == 0) & (self.images[rows] == 0)
        return neither


def count_better(
    image: np.ndarray,
    text: np.ndarray,
    own: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
) -> BetterMatches:
    """Count the better matches of every pair in the corpus, exactly, in n^2 d operations.

    `image` and `text` are (n, d), `own` (n,) the cosines of the pairs, the groups (n,) any labels
    of near-duplicates.
    """
    captions, images = np.zeros(len(own), np.int32), np.zeros(len(own), np.int32)
    grouped = np.flatnonzero(_has_company(image_group) | _has_company(text_group))
    for here in chunks(len(own), _BLOCK_ROWS):
        rows = image[here].astype(np.float32)
        here_grouped = _within(grouped, here)
        for there in chunks(len(own), _COLUMN_ROWS):
            cosines = rows @ text[there].astype(np.float32).T
            captions[here] += (cosines > own[here, None] + TIE).sum(axis=1, dtype=np.int32)
            images[there] += (cosines > own[None, there] + TIE).sum(axis=0, dtype=np.int32)
            # Take back what came from near-duplicates, which few pairs have.
            i, j = here_grouped, _within(grouped, there)
            same = image_group[i, None] == image_group[None, j]
            same |= text_group[i, None] == text_group[None, j]
            cosines = cosines[np.ix_(i - here.start, j - there.start)]
            captions[i] -= (same & (cosines > own[i, None] + TIE)).sum(axis=1, dtype=np.int32)
            images[j] -= (same & (cosines > own[None, j] + TIE)).sum(axis=0, dtype=np.int32)
    return BetterMatches(captions, images)


def _has_company(group: np.ndarray) -> np.ndarray:
    """(n,) bool: another pair has the same label."""
    _, inverse, counts = np.unique(group, return_inverse=True, return_counts=True)
    company: np.ndarray = counts[inverse.reshape(-1)] > 1
    return company


def _within(rows: np.ndarray, block: slice) -> np.ndarray:
    """The part of the sorted (m,) row numbers that lies in `block`."""
    first, last = np.searchsorted(rows, (block.start, block.stop))
    return rows[first:last]


@dataclass(frozen=True)
class CandidateCounts:
    """Counts how often a near-duplicate group of queries holds a distinct candidate.

    `keys` (h,) are those of all pairs in groups of more than one, ascending; `sizes` (n,) are those
    of the groups by their first pair.
    """

    keys: np.ndarray
    sizes: np.ndarray
    candidates: Distinct

    @staticmethod
    def keys_of(group: np.ndarray, candidate: np.ndarray, candidates: int) -> np.ndarray:
        """Int64 keys that sort (group, candidate) by group, then by candidate."""
        keys: np.ndarray = group.astype(np.int64) * (candidates + 1) + candidate
        return keys

    def count(self, pairs: np.ndarray, group: np.ndarray, candidate: np.ndarray) -> np.ndarray:
        """(p, k) how often each candidate of a pair occurs in the pair's near-duplicate group."""
        keys = self.keys_of(group[:, None], candidate, len(self.candidates))
        ends = (np.searchsorted(self.keys, keys, side=side) for side in ("right", "left"))
        return np.where(
            self.sizes[group, None] > 1,
            np.subtract(*ends),
            candidate == self.candidates.labels[pairs, None],
        )


def count_better_among(
    pairs: np.ndarray,
    nearest: Nearest,
    own: np.ndarray,
    query_group: np.ndarray,
    candidate_group: np.ndarray,
    candidate_counts: CandidateCounts,
) -> np.ndarray:
    """(p,) lower bounds on the better matches of pairs: those among the neighbours found.

    `nearest` has a row for each of the pairs and names distinct candidates. The groups (n,) are
    those of all pairs, in the queries' modality and in the candidates'; `held` is theirs.
    """
    candidates = candidate_counts.candidates
    counts = np.empty(len(pairs), dtype=np.int32)
    for rows in chunks(len(pairs), _COLUMN_ROWS):
        here = pairs[rows]
        ids = nearest.ids[rows]
        better = (nearest.cosines[rows] > own[here, None] + TIE) & (ids >= 0)
        better &= candidate_group[candidates.first[ids]] != candidate_group[here, None]
        # Pairs of the query's own group that hold the candidate are no better matches.
        sizes = candidates.starts[ids + 1] - candidates.starts[ids]
        same_group = candidate_counts.count(here, query_group[here], ids)
        counts[rows] = (better * (sizes - same_group)).sum(axis=1)
    return counts
