"""How near the images of a corpus are to those of another one, such as an evaluation set.

`reference_similarity` is NormSim-infinity of Wang et al. 2024, "CLIPLoss and Norm-Based Data
Selection Methods for Multimodal Contrastive Learning": the largest cosine of an image with the
images of the reference. Data near to a target task are worth more to it; data that are copies of an
evaluation set make its results worthless.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ncclean.neighbours.matmul import load_faiss

# Cosine from which an image counts as one of the reference, whitened and in the model's own space.
CONTAMINATED = {True: 0.95, False: 0.98}
REFERENCE_ROWS = 1 << 17  # held in float32 at a time


@dataclass(frozen=True)
class ReferenceMatches:
    """Of n pairs: `similarity`, `nearest` (the row of the reference) and `contaminated`, (n,)."""

    similarity: np.ndarray
    nearest: np.ndarray
    contaminated: np.ndarray
    threshold: float


@dataclass
class NearestReference:
    """The nearest of a reference, which comes in pieces, for (m, d) float32 queries."""

    queries: np.ndarray

    def __post_init__(self) -> None:
        self.cosines = np.full(len(self.queries), -np.inf, dtype=np.float32)
        self.rows = np.zeros(len(self.queries), dtype=np.int64)

    def add(self, first: int, vectors: np.ndarray) -> None:
        """Compare with rows of the reference, the first of which has this number."""
        faiss = load_faiss()
        cosines, ids = faiss.knn(self.queries, vectors, 1, metric=faiss.METRIC_INNER_PRODUCT)
        closer = cosines[:, 0] > self.cosines
        self.cosines[closer] = cosines[:, 0][closer]
        self.rows[closer] = first + ids[:, 0][closer]
