"""Embeddings with known neighbours."""

from __future__ import annotations

import numpy as np

from ncclean.neighbour_search.copies import Distinct


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def clustered(count: int, dim: int, seed: int = 0, clusters: int = 50) -> np.ndarray:
    """(count, dim) float16 unit vectors around random centres, inside one cone."""
    rng = np.random.default_rng(seed)
    centres = unit(rng.standard_normal((clusters, dim)))
    spread = 0.6 * unit(rng.standard_normal((count, dim)))
    cone = unit(rng.standard_normal(dim))
    return unit(centres[rng.integers(0, clusters, count)] + spread + cone).astype(np.float16)


def distinct_of(labels: np.ndarray) -> Distinct:
    """The classes of rows with equal labels."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    shapes = Distinct.shapes(len(labels), len(first))
    classes = Distinct.of({name: np.zeros(*shape) for name, shape in shapes.items()})
    classes.fill(first[inverse.reshape(-1)])
    return classes
