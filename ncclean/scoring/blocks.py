"""Blocks: the sets of pairs that in-batch statistics are taken over.

They depend on the shard, its number of scorable pairs and the seed alone, never on the inference
batch size or the order of completion, so neither do the scores.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def block_ids(pairs: int, block_size: int, seed: int, shard: str) -> np.ndarray:
    """(pairs,) int32 block number of each scorable pair of a shard.

    A seeded permutation is cut into `max(1, round(pairs / block_size))` blocks whose sizes
    differ by at most one. The shard's name enters the seed, so that shards of one size are not
    all cut the same way.
    """
    blocks = max(1, round(pairs / block_size))
    digest = hashlib.blake2b(shard.encode(), digest_size=8).digest()
    rng = np.random.default_rng([seed, int.from_bytes(digest, "little")])
    ids = np.empty(pairs, dtype=np.int32)
    for number, members in enumerate(np.array_split(rng.permutation(pairs), blocks)):
        ids[members] = number
    return ids


def partner_ranks(similarity: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, N) cosines -> image-to-text and text-to-image rank of each pair's own partner.

    0 is best; only strictly better candidates count, so a tie does not cost a rank. (N,) int64.
    """
    own = similarity.diagonal()
    image_to_text = (similarity > own[:, None]).sum(dim=1)
    text_to_image = (similarity > own[None, :]).sum(dim=0)
    return image_to_text, text_to_image
