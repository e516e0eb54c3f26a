"""Embeddings with known neighbours."""

from __future__ import annotations

import numpy as np


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def clustered(count: int, dim: int, seed: int = 0, clusters: int = 50) -> np.ndarray:
    """(count, dim) float16 unit vectors around random centres, inside one cone."""
    rng = np.random.default_rng(seed)
    centres = unit(rng.standard_normal((clusters, dim)))
    spread = 0.6 * unit(rng.standard_normal((count, dim)))
    cone = unit(rng.standard_normal(dim))
    return unit(centres[rng.integers(0, clusters, count)] + spread + cone).astype(np.float16)
