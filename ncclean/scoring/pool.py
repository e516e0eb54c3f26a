"""A pool of pairs of the whole corpus: rivals for `neg_clip_loss`, however small a block is.

The authors of negCLIPLoss normalise with 32,768 random pairs of the whole corpus. A block has only
the pairs of one shard, and a small shard makes a small block.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

# Cosines held at a time, for each side.
_CHUNK_CELLS = 1 << 24


@dataclass(frozen=True)
class Rivals:
    """Logsumexps of the logits of n pairs with the pairs of a pool, (n,) each.

    `i2t` is logsumexp_l(scale <v_i, t_l>) over the captions l of the pool, `t2i` the same for
    captions with its images; both leave out pairs of the pool that are of the same sample as pair
    i. `in_pool` tells which pairs are in the pool themselves.
    """

    i2t: torch.Tensor
    t2i: torch.Tensor
    in_pool: torch.Tensor


@dataclass(frozen=True)
class Pool:
    """A sample of P pairs of the corpus: their captions and images are rivals of other pairs.

    `image` and `text` (P, d) are L2-normalised, float32 rounded to float16; `samples` (P,) are
    those of `sample_numbers`.
    """

    image: torch.Tensor
    text: torch.Tensor
    samples: np.ndarray

    def rivals(
        self, image: torch.Tensor, text: torch.Tensor, samples: np.ndarray, scale: float
    ) -> Rivals:
        """Return the logsumexps of n pairs, (n, d) float32 embeddings, over the pairs of the pool.

        `samples` (n,) are the pairs' sample numbers: pairs of the pool with an equal number are
        left out.
        """
        rows, places = _same(samples, self.samples)
        in_pool = np.zeros(len(samples), dtype=bool)
        in_pool[rows] = True
        i2t, t2i = (
            _logsumexp(mine, theirs.to(mine.device), rows, places, scale)
            for mine, theirs in ((image, self.text), (text, self.image))
        )
        return Rivals(i2t, t2i, torch.from_numpy(in_pool).to(image.device))


def sample_numbers(uids: Iterable[str]) -> np.ndarray:
    """Return (n,) uint64 hashes of uids, equal for the captions of one image."""
    hashes = (hashlib.blake2b(uid.encode(), digest_size=8).digest() for uid in uids)
    return np.frombuffer(b"".join(hashes), dtype="<u8").astype(np.uint64)


def _same(samples: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all (i, j) with samples[i] = others[j], as two arrays."""
    order = np.argsort(others, kind="stable")
    first = np.searchsorted(others, samples, "left", order)
    last = np.searchsorted(others, samples, "right", order)
    counts = last - first
    rows = np.repeat(np.arange(len(samples)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, order[np.repeat(first, counts) + within]


def _logsumexp(
    queries: torch.Tensor,
    candidates: torch.Tensor,
    rows: np.ndarray,
    places: np.ndarray,
    scale: float,
) -> torch.Tensor:
    """Return (n,) logsumexp_l(scale <query_i, candidate_l>) without the (rows, places)."""
    partitions = queries.new_empty(len(queries))
    step = max(1, _CHUNK_CELLS // max(1, len(candidates)))
    for start in range(0, len(queries), step):
        logits = scale * (queries[start : start + step] @ candidates.T)
        is_in_chunk = (rows >= start) & (rows < start + step)
        logits[
            torch.from_numpy(rows[is_in_chunk] - start), torch.from_numpy(places[is_in_chunk])
        ] = -math.inf
        partitions[start : start + step] = logits.logsumexp(dim=1)
    return partitions
