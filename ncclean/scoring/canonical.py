"""Cosines after canonical correlation analysis: what image and caption embeddings share.

Li et al. 2025, "CSA: Data-efficient Mapping of Unimodal Features to Multimodal Features" (ICLR
2025): only directions in which matched images and captions agree count. They are fitted to the
corpus itself, including its noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

RIDGE = 1e-3
PAIRS_A_DIMENSION = 10
_PIECE_ROWS = 4096


def halves(shards: Sequence[str], rows: np.ndarray) -> np.ndarray:
    """Assign pairs to two halves of the corpus by a hash of shard and row; return (n,) bool."""
    is_second = (
        hashlib.blake2b(f"{shard}/{row}".encode(), digest_size=1).digest()[0] & 1
        for shard, row in zip(shards, rows.tolist(), strict=True)
    )
    return np.fromiter(is_second, dtype=bool, count=len(shards))


@dataclass
class Moments:
    """Sums over the pairs of one half of a corpus, which give `Projection.fit` its covariances.

    `arrays` holds the (d,) sums `image` and `text`, and (d, d) sums of outer products: `images`
    with images, `texts` with texts, `both` of each image with its caption, and `permuted` with the
    caption of another pair. Sums of several parts can be added in any order.
    """

    dim: int
    pairs: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.arrays:
            self.arrays = {
                name: np.zeros(self.dim if name in ("image", "text") else (self.dim, self.dim))
                for name in ("image", "text", "images", "texts", "both", "permuted")
            }

    def add(self, image: np.ndarray, text: np.ndarray, rng: np.random.Generator) -> None:
        """Add n pairs, (n, d) embeddings each, and the same pairs with permuted captions."""
        order = rng.permutation(len(image))
        for at in range(0, len(image), _PIECE_ROWS):
            rows = slice(at, at + _PIECE_ROWS)
            sides = image[rows], text[rows], text[order[rows]]
            v, t, other = (side.astype(np.float32) for side in sides)
            for name, product in (
                ("image", v.sum(0)), ("text", t.sum(0)), ("images", v.T @ v), ("texts", t.T @ t),
                ("both", v.T @ t), ("permuted", v.T @ other),
            ):  # fmt: skip
                self.arrays[name] += product
        self.pairs += len(image)


@dataclass(frozen=True)
class Projection:
    """A linear map of image and caption embeddings to directions they share (Li et al. 2025).

    Subtracts the (d,) means and multiplies with the (d, k) bases, which are weighted by
    correlation.
    """

    image_mean: np.ndarray
    text_mean: np.ndarray
    image_basis: np.ndarray
    text_basis: np.ndarray

    @classmethod
    def fit(cls, moments: Moments) -> Projection | None:
        """Fit the shared directions to the moments of half a corpus; None if it has too few pairs.

        C_vt is the covariance of images with captions, and W = (C + 1e-3 tr(C)/d I)^(-1/2) whitens
        one side of covariance C. With the singular value decomposition W_v C_vt W_t = U s Z', the
        bases are W_v U s and W_t Z s, for the components whose s exceeds all those of permuted
        captions.
        """
        count = moments.pairs
        if count < PAIRS_A_DIMENSION * moments.dim:
            return None
        arrays = {name: array / count for name, array in moments.arrays.items()}
        v, t = arrays["image"], arrays["text"]
        whiten_v = _inverse_root(arrays["images"] - np.outer(v, v))
        whiten_t = _inverse_root(arrays["texts"] - np.outer(t, t))
        left, strength, right = np.linalg.svd(
            whiten_v @ (arrays["both"] - np.outer(v, t)) @ whiten_t
        )
        by_chance = whiten_v @ (arrays["permuted"] - np.outer(v, t)) @ whiten_t
        is_shared = strength > np.linalg.svd(by_chance, compute_uv=False)[0]
        return cls(
            image_mean=v,
            text_mean=t,
            image_basis=whiten_v @ left[:, is_shared] * strength[is_shared],
            text_basis=whiten_t @ right.T[:, is_shared] * strength[is_shared],
        )

    def cosines(self, image: np.ndarray, text: np.ndarray) -> np.ndarray:
        """Return (n,) float32 cosines of (n, d) images and captions in the shared directions."""
        out = np.zeros(len(image), np.float32)
        for at in range(0, len(image), _PIECE_ROWS):
            rows = slice(at, at + _PIECE_ROWS)
            x = (image[rows] - self.image_mean) @ self.image_basis
            y = (text[rows] - self.text_mean) @ self.text_basis
            norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
            products = np.einsum("nk,nk->n", x, y)
            out[rows] = np.divide(products, norms, out=np.zeros_like(norms), where=norms > 0)
        return out


def _inverse_root(covariance: np.ndarray) -> np.ndarray:
    dim = len(covariance)
    values, vectors = np.linalg.eigh(covariance + RIDGE * np.trace(covariance) / dim * np.eye(dim))
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)
