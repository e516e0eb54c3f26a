"""The results of a search for each pair of a corpus.

How near the images of a corpus are to those of another one, such as an evaluation set, is
NormSim-infinity of Wang et al. 2024, "CLIPLoss and Norm-Based Data Selection Methods for Multimodal
Contrastive Learning": the largest cosine of an image with the images of the reference. Data near to
a target task are worth more to it; copies of an evaluation set make its results worthless.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ncclean.neighbour_search.better_matches import BetterMatches

# Cosine from which two are near-duplicates, by modality, in the whitened space and in the model's.
# docs/neighbours.md has what they find and what they take wrongly.
THRESHOLDS = {"image": {True: 0.80, False: 0.96}, "text": {True: 0.90, False: 0.98}}
# Whitening makes much of directions in which a corpus varies little. Images this close in the
# model's own space are near-duplicates even if they differ there, unless a threshold is given.
SAME_IMAGE_COSINE = 0.98


@dataclass(frozen=True, kw_only=True)
class Side:
    """One modality: its `distinct` rows, and for n pairs the near-duplicates.

    `group` (n,) is the first pair of each pair's group, `sizes` (n,) how many pairs a group has, by
    its first pair, and `members` (n,) how many images or captions; `similarity` (n,) is the cosine
    of its distinct row with that of the group, whitened if the search is. `index` describes the
    lists. Recalls are measured on a sample against exact search: of the neighbours in the modality,
    of those across (of the other modality's queries), and `duplicate_recall` of near-duplicates,
    NaN where the sample has none.
    """

    distinct: int
    threshold: float
    group: np.ndarray
    sizes: np.ndarray
    members: np.ndarray
    similarity: np.ndarray
    index: str
    recall: float
    across_recall: float
    duplicate_recall: float


@dataclass(frozen=True, kw_only=True)
class CorpusNeighbours:
    """The results; arrays are (n,) and may be mapped files, groups are rows of first members."""

    image: Side
    text: Side
    whiten: bool
    is_exact: bool
    pair_group: np.ndarray
    pair_sizes: np.ndarray
    better: BetterMatches
    lemon: np.ndarray
    cluster: np.ndarray
    reference: ReferenceMatches | None
    left_out: int
    repeated_uids: int


# Cosine from which an image counts as one of the reference, whitened and in the model's own space.
CONTAMINATED = {True: 0.95, False: 0.98}


@dataclass(frozen=True)
class ReferenceMatches:
    """The best matches of n pairs in the reference, (n,) each.

    `nearest` is the row of the reference, `similarity` the cosine with it.
    """

    similarity: np.ndarray
    nearest: np.ndarray
    contaminated: np.ndarray
    threshold: float
