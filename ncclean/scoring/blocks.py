"""Blocks: the sets of pairs that in-batch statistics are taken over.

They depend on the shard, its number of scorable pairs and the seed alone, never on the inference
batch size or the order of completion, so neither do the scores.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch

from ncclean.scoring.null import Histogram, bin_counts
from ncclean.scoring.stats import Distributions

# Rows that a pass over a block takes at a time on a CPU: what it makes of them stays in its cache.
_CACHED_ROWS = 32
# In place of a cosine that does not count: exp(scale (it - own)) vanishes beside exp(0), and it
# falls into the first bin.
_NO_COSINE = -64.0


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
    logsumexp_j(scale S_ji); `i2t_rivals` and `t2i_rivals` are those over j != i. A rank counts the
    candidates that are strictly better than the own partner, 0 is best, so a tie does not cost one.
    `mismatches` are those of `known_mismatches`.
    Captions of one image are no candidates of each other: where i and j != i share it, S_ij counts
    nowhere.
    """

    own: torch.Tensor
    i2t_rivals: torch.Tensor
    t2i_rivals: torch.Tensor
    i2t_partition: torch.Tensor
    t2i_partition: torch.Tensor
    i2t_rank: torch.Tensor
    t2i_rank: torch.Tensor
    mismatches: Distributions

    @classmethod
    def of(
        cls, cosines: torch.Tensor, scale: float, images: torch.Tensor | None = None
    ) -> BlockStatistics:
        """Of (N, N) float32 cosines, in few passes.

        `images` (N,) are numbers of the images; None if all differ, and then the cosines are left
        as they are. Those that do not count are replaced.

        Sums are products with ones, for which the processor has its fastest code; those of zeros
        and ones are exact.
        """
        size = len(cosines)
        own = cosines.diagonal().contiguous()
        left_out = _LeftOut.of(cosines, images)
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
            i2t_sum[here] = _without_own(by.mul_(scale).exp_(), start) @ ones
            torch.sub(part, own, out=by)
            t2i_rank += down @ torch.gt(by, 0, out=flag)
            t2i_sum += down @ _without_own(by.mul_(scale).exp_(), start)
            of_image[here] = part @ ones
            of_caption += down @ part
            counts += bin_counts(part)
        i2t_rivals = _rivals(cosines, own, i2t_sum, scale)
        t2i_rivals = _rivals(cosines.T, own, t2i_sum, scale)
        return cls(
            own=own,
            i2t_rivals=i2t_rivals,
            t2i_rivals=t2i_rivals,
            i2t_partition=torch.logaddexp(i2t_rivals, scale * own),
            t2i_partition=torch.logaddexp(t2i_rivals, scale * own),
            i2t_rank=i2t_rank.int(),
            t2i_rank=t2i_rank.int(),
            mismatches=_mismatches(own, counts, of_image, of_caption, left_out),
        )


def known_mismatches(cosines: torch.Tensor, images: torch.Tensor | None = None) -> Distributions:
    """Of (N, N) cosines S: the S_ij with i != j, and their means by image and by caption.

    There are none of a single pair, nor of pairs that share an image: see `BlockStatistics.of`.
    """
    own = cosines.diagonal().contiguous()
    left_out = _LeftOut.of(cosines, images)
    sums = cosines.sum(dim=1), cosines.sum(dim=0)
    return _mismatches(own, bin_counts(cosines), *sums, left_out)


@dataclass(frozen=True)
class _LeftOut:
    """Cosines of different pairs with one image: how many each row has, and which rows are first.

    The matrix is symmetric, so each column has as many. None of a block whose images all differ.
    """

    by_row: torch.Tensor
    is_first: torch.Tensor

    @classmethod
    def of(cls, cosines: torch.Tensor, images: torch.Tensor | None) -> _LeftOut | None:
        """Finds them, and puts the value in their place that adds nothing to any sum of exps."""
        if images is None or len(images.unique()) == len(images):
            return None
        same = images[:, None] == images
        same.fill_diagonal_(False)
        cosines.masked_fill_(same, _NO_COSINE)
        return cls(same.sum(dim=1), ~same.tril().any(dim=1))


def _mismatches(
    own: torch.Tensor,
    counts: torch.Tensor,
    of_image: torch.Tensor,
    of_caption: torch.Tensor,
    left_out: _LeftOut | None,
) -> Distributions:
    """From S_ii, the counts of all S_ij in bins, and the sums of the rows and columns."""
    others = torch.full_like(own, len(own) - 1)
    is_first = torch.ones_like(own, dtype=torch.bool)
    if left_out is not None:
        counts[0] -= left_out.by_row.sum()
        of_image = of_image - _NO_COSINE * left_out.by_row
        of_caption = of_caption - _NO_COSINE * left_out.by_row
        others, is_first = others - left_out.by_row, left_out.is_first
    distributions = Distributions(mismatched=Histogram.with_sums(counts, of_image))
    distributions.mismatched -= Histogram.of(own)
    with_others = others > 0
    # An image counts once, whatever the number of its captions: see `null._median_doubt`.
    for_image = with_others & is_first
    distributions.image_means = Histogram.of(((of_image - own) / others)[for_image])
    distributions.caption_means = Histogram.of(((of_caption - own) / others)[with_others])
    return distributions


def _without_own(terms: torch.Tensor, start: int) -> torch.Tensor:
    """Rows `start` and on of an (N, N) matrix, with 0 for what is on its diagonal."""
    terms.diagonal(start).zero_()
    return terms


def _rivals(
    cosines: torch.Tensor, own: torch.Tensor, sums: torch.Tensor, scale: float
) -> torch.Tensor:
    """logsumexp_{j != i} scale S_ij, from (N,) sums of exp(scale (S_ij - S_ii)) over them."""
    rivals = sums.log() + scale * own
    # Candidates that are ahead of the own partner by 0.88, at a scale of 100, overflow; those that
    # are as far behind vanish.
    lost = (sums.isinf() | (sums == 0)).nonzero()[:, 0]
    if len(lost) and len(own) > 1:
        logits = scale * cosines[lost]
        logits[torch.arange(len(lost), device=lost.device), lost] = -math.inf
        rivals[lost] = logits.logsumexp(dim=1)
    return rivals
