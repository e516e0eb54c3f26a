"""Blocks: the sets of pairs that in-batch statistics are taken over.

They depend on the shard, its number of scorable pairs and the seed alone, never on the inference
batch size or the order of completion, so neither do the scores.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from ncclean.scoring.null import Histogram

# Rows that a pass over a block takes at a time on a CPU: what it makes of them stays in its cache.
_CACHED_ROWS = 64


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

    0 is best; only strictly better candidates count, so a tie does not cost a rank. (N,) int32.
    """
    block = BlockStatistics.of(similarity.float(), 1.0)
    return block.i2t_rank, block.t2i_rank


@dataclass(frozen=True)
class BlockStatistics:
    """All that a block's (N, N) cosines S say about its pairs; (N,) each.

    `own` is S_ii. `i2t_partition` and `t2i_partition` are logsumexp_j(scale S_ij) and
    logsumexp_j(scale S_ji). A rank counts the candidates that are strictly better than the own
    partner, 0 is best, so a tie does not cost one. `mismatched` holds the S_ij with i != j, and
    `image_means` and `caption_means` their means by image and by caption; of a single pair there
    are none.
    """

    own: torch.Tensor
    i2t_partition: torch.Tensor
    t2i_partition: torch.Tensor
    i2t_rank: torch.Tensor
    t2i_rank: torch.Tensor
    mismatched: Histogram
    image_means: Histogram
    caption_means: Histogram

    @classmethod
    def of(cls, cosines: torch.Tensor, scale: float) -> BlockStatistics:
        """Of (N, N) float32 cosines, in few passes that leave the cosines as they are."""
        size = len(cosines)
        own = cosines.diagonal().contiguous()
        i2t_partition, i2t_rank = torch.empty_like(own), torch.empty_like(own)
        t2i_sum, t2i_rank = torch.zeros_like(own), torch.zeros_like(own)
        of_image, of_caption = torch.empty_like(own), torch.zeros_like(own)
        highest = torch.full_like(own, -torch.inf)  # of each column so far
        every = Histogram()
        rows = _CACHED_ROWS if cosines.device.type == "cpu" else max(size, 1)
        # Ones and zeros in place of booleans: their sums are several times as fast.
        is_better = cosines.new_empty(rows, size)
        for start in range(0, size, rows):
            part, here = cosines[start : start + rows], slice(start, start + rows)
            count = is_better[: len(part)]
            i2t_rank[here] = torch.gt(part, own[here, None], out=count).sum(dim=1)
            t2i_rank += torch.gt(part, own, out=count).sum(dim=0)
            i2t_partition[here] = (scale * part).logsumexp(dim=1)
            before, highest = highest, torch.maximum(highest, part.amax(dim=0))
            t2i_sum *= (before - highest).mul_(scale).exp_()
            t2i_sum += (part - highest).mul_(scale).exp_().sum(dim=0)
            of_image[here] = part.sum(dim=1)
            of_caption += part.sum(dim=0)
            every += Histogram.of(part)
        every -= Histogram.of(own)
        means = [Histogram.of((s - own) / (size - 1)) for s in (of_image, of_caption) if size > 1]
        image_means, caption_means = means or (Histogram(), Histogram())
        return cls(
            own=own,
            i2t_partition=i2t_partition,
            t2i_partition=t2i_sum.log() + scale * highest,
            i2t_rank=i2t_rank.int(),
            t2i_rank=t2i_rank.int(),
            mismatched=every,
            image_means=image_means,
            caption_means=caption_means,
        )
