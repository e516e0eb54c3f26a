"""Blocks: the sets of pairs that in-batch statistics are taken over.

They depend on the shard, its number of scorable pairs and the seed alone, never on the inference
batch size or the order of completion, so neither do the scores.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from ncclean.scoring.null import Histogram, bin_counts
from ncclean.scoring.stats import Distributions

# Rows that a pass over a block takes at a time on a CPU: what it makes of them stays in its cache.
_CACHED_ROWS = 32


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
    partner, 0 is best, so a tie does not cost one. `mismatches` are those of `known_mismatches`.
    """

    own: torch.Tensor
    i2t_partition: torch.Tensor
    t2i_partition: torch.Tensor
    i2t_rank: torch.Tensor
    t2i_rank: torch.Tensor
    mismatches: Distributions

    @classmethod
    def of(cls, cosines: torch.Tensor, scale: float) -> BlockStatistics:
        """Of (N, N) float32 cosines, in few passes that leave the cosines as they are.

        Sums are products with ones, for which the processor has its fastest code; those of zeros
        and ones are exact.
        """
        size = len(cosines)
        own = cosines.diagonal().contiguous()
        i2t_sum, i2t_rank, of_image = (torch.empty_like(own) for _ in range(3))
        t2i_sum, t2i_rank, of_caption = (torch.zeros_like(own) for _ in range(3))
        counts = bin_counts(own[:0])
        rows = _CACHED_ROWS if cosines.device.type == "cpu" else max(size, 1)
        ones = torch.ones_like(own)
        ahead, is_ahead = cosines.new_empty(2, rows, size)  # of the own partner
        for start in range(0, size, rows):
            part, here = cosines[start : start + rows], slice(start, start + rows)
            down, by, flag = ones[: len(part)], ahead[: len(part)], is_ahead[: len(part)]
            torch.sub(part, own[here, None], out=by)
            i2t_rank[here] = torch.gt(by, 0, out=flag) @ ones
            i2t_sum[here] = by.mul_(scale).exp_() @ ones
            torch.sub(part, own, out=by)
            t2i_rank += down @ torch.gt(by, 0, out=flag)
            t2i_sum += down @ by.mul_(scale).exp_()
            of_image[here] = part @ ones
            of_caption += down @ part
            counts += bin_counts(part)
        return cls(
            own=own,
            i2t_partition=_partition(cosines, own, i2t_sum, scale),
            t2i_partition=_partition(cosines.T, own, t2i_sum, scale),
            i2t_rank=i2t_rank.int(),
            t2i_rank=t2i_rank.int(),
            mismatches=_mismatches(own, counts, of_image, of_caption),
        )


def known_mismatches(cosines: torch.Tensor) -> Distributions:
    """Of (N, N) cosines S: the S_ij with i != j, and their means by image and by caption.

    There are none of a single pair.
    """
    own = cosines.diagonal().contiguous()
    return _mismatches(own, bin_counts(cosines), cosines.sum(dim=1), cosines.sum(dim=0))


def _mismatches(
    own: torch.Tensor, counts: torch.Tensor, of_image: torch.Tensor, of_caption: torch.Tensor
) -> Distributions:
    """From S_ii, the counts of all S_ij in bins, and the sums of the rows and columns."""
    others = len(own) - 1
    found = Distributions(mismatched=Histogram.with_sums(counts, of_image))
    found.mismatched -= Histogram.of(own)
    if others > 0:
        found.image_means = Histogram.of((of_image - own) / others)
        found.caption_means = Histogram.of((of_caption - own) / others)
    return found


def _partition(
    cosines: torch.Tensor, own: torch.Tensor, sums: torch.Tensor, scale: float
) -> torch.Tensor:
    """logsumexp of the rows of scale S, from (N,) sums of exp(scale (S_ij - S_ii))."""
    partition = sums.log() + scale * own
    # Candidates that are ahead of the own partner by 0.88, at a scale of 100, overflow.
    overflown = sums.isinf().nonzero()[:, 0]
    partition[overflown] = (scale * cosines[overflown]).logsumexp(dim=1)
    return partition
