"""Assign pairs to blocks, over which in-batch statistics are taken.

Blocks, and so the scores, depend only on the shard, its number of scorable pairs and the seed,
never on the inference batch size or the order of completion.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch

from ncclean.scoring.null import Histogram, bin_counts
from ncclean.scoring.stats import Distributions

# Rows per pass over a block on a CPU, so that intermediate results stay in its cache.
_CACHED_ROWS = 32
# Replaces a cosine that does not count: exp(scale (it - own)) vanishes beside exp(0), and it falls
# into the first bin.
_NO_COSINE = -64.0


def block_ids(pairs: int, block_size: int, seed: int, shard: str) -> np.ndarray:
    """Assign a shard's scorable pairs to blocks at random; return (pairs,) int32 numbers.

    A seeded permutation is cut into `max(1, round(pairs / block_size))` blocks whose sizes differ
    by at most one. The shard's name enters the seed, so that equally large shards are cut
    differently.
    """
    blocks = max(1, round(pairs / block_size))
    digest = hashlib.blake2b(shard.encode(), digest_size=8).digest()
    rng = np.random.default_rng([seed, int.from_bytes(digest, "little")])
    ids = np.empty(pairs, dtype=np.int32)
    for number, members in enumerate(np.array_split(rng.permutation(pairs), blocks)):
        ids[members] = number
    return ids


@dataclass(frozen=True)
class BlockStatistics:
    """Statistics of each pair of a block, (N,) each, from the (N, N) cosines S of its members.

    S_ij is the cosine of image i with caption j, and `own` is S_ii. `i2t_partition` and
    `t2i_partition` are logsumexp_j(scale S_ij) and logsumexp_j(scale S_ji); `i2t_rivals` and
    `t2i_rivals` are the same over j != i. A rank counts the candidates that are strictly better
    than the own partner; 0 is best, and ties do not count. `mismatches` are the histograms of
    `known_mismatches`. If pairs i != j share an image, S_ij is left out of everything; if only
    their captions are equal, S_ij is no known mismatch.
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
        cls,
        cosines: torch.Tensor,
        scale: float,
        images: torch.Tensor | None = None,
        captions: torch.Tensor | None = None,
    ) -> BlockStatistics:
        """Compute the statistics from a block's (N, N) float32 cosines, overwriting some.

        `images` and `captions` (N,) number the pairs' images and texts, equal numbers for equal
        ones; None if all differ. Cosines of pairs that share an image are overwritten.
        """
        size = len(cosines)
        own = cosines.diagonal().contiguous()
        left_out = _LeftOut.of(cosines, images, captions)
        i2t_sum, i2t_rank, of_image = (torch.empty_like(own) for _ in range(3))
        t2i_sum, t2i_rank, of_caption = (torch.zeros_like(own) for _ in range(3))
        counts = bin_counts(own[:0])
        rows = _CACHED_ROWS if cosines.device.type == "cpu" else max(size, 1)
        # A sum as a product with ones is fastest, and exact for zeros and ones.
        ones = torch.ones_like(own)
        ahead, is_ahead = cosines.new_empty(2, rows, size)  # of the own partner
        for start in range(0, size, rows):
            part, own_rows = cosines[start : start + rows], slice(start, start + rows)
            margin, is_larger = ahead[: len(part)], is_ahead[: len(part)]
            row_ones = ones[: len(part)]
            torch.sub(part, own[own_rows, None], out=margin)
            i2t_rank[own_rows] = torch.gt(margin, 0, out=is_larger) @ ones
            i2t_sum[own_rows] = _without_own(margin.mul_(scale).exp_(), start) @ ones
            torch.sub(part, own, out=margin)
            t2i_rank += row_ones @ torch.gt(margin, 0, out=is_larger)
            t2i_sum += row_ones @ _without_own(margin.mul_(scale).exp_(), start)
            of_image[own_rows] = part @ ones
            of_caption += row_ones @ part
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
            mismatches=_mismatches(cosines, counts, of_image, of_caption, left_out),
        )


def known_mismatches(
    cosines: torch.Tensor, images: torch.Tensor | None = None, captions: torch.Tensor | None = None
) -> Distributions:
    """Return histograms of the cosines of known mismatches in a block: image i with caption j != i.

    `cosines` is (N, N). Also counts, for each image and each caption, the mean cosine of its known
    mismatches. Two pairs that share an image or have equal captions are not a known mismatch:
    `images` and `captions` (N,) number them, None if all differ.
    """
    left_out = _LeftOut.of(cosines, images, captions)
    sums = cosines.sum(dim=1), cosines.sum(dim=0)
    return _mismatches(cosines, bin_counts(cosines), *sums, left_out)


@dataclass(frozen=True)
class _LeftOut:
    """Cosines of different pairs i and j that are not known mismatches, (N, N) bool each.

    They belong to pairs of one image, or to different images with equal captions: image i may well
    match caption j, which says the same as its own. Both are symmetric, None if there are none.
    `is_first_image` and `is_first_caption` are (N,): an image, or a text, counts once.
    """

    of_one_image: torch.Tensor | None
    of_equal_captions: torch.Tensor | None
    is_first_image: torch.Tensor
    is_first_caption: torch.Tensor

    @classmethod
    def of(
        cls, cosines: torch.Tensor, images: torch.Tensor | None, captions: torch.Tensor | None
    ) -> _LeftOut:
        """Find them; cosines of one image get the value that adds nothing to any sum of exps."""
        one_image, is_first_image = _shared(cosines, images)
        equal, is_first_caption = _shared(cosines, captions)
        if one_image is not None:
            cosines.masked_fill_(one_image, _NO_COSINE)
            if equal is not None:
                equal &= ~one_image
        return cls(one_image, equal, is_first_image, is_first_caption)


def _shared(
    cosines: torch.Tensor, numbers: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return (N, N) where pairs have equal numbers, and (N,) which pair is the first of each."""
    if numbers is None or len(numbers.unique()) == len(numbers):
        return None, torch.ones(len(cosines), dtype=torch.bool, device=cosines.device)
    same = numbers[:, None] == numbers
    same.fill_diagonal_(False)
    return same, ~same.tril().any(dim=1)


def _mismatches(
    cosines: torch.Tensor,
    counts: torch.Tensor,
    of_image: torch.Tensor,
    of_caption: torch.Tensor,
    left_out: _LeftOut,
) -> Distributions:
    """Count known mismatches from all S_ij in bins, and from the sums of the rows and columns."""
    pair_cosines = cosines.diagonal().contiguous()
    others = torch.full_like(pair_cosines, len(pair_cosines) - 1)
    for excluded in (left_out.of_one_image, left_out.of_equal_captions):
        if excluded is None:
            continue
        counts = counts - bin_counts(cosines[excluded])
        dropped = torch.where(excluded, cosines, 0.0)
        of_image, of_caption = of_image - dropped.sum(dim=1), of_caption - dropped.sum(dim=0)
        others = others - excluded.sum(dim=1)
    distributions = Distributions(mismatched=Histogram.with_sums(counts, of_image))
    distributions.mismatched -= Histogram.of(pair_cosines)
    with_others = others > 0
    # An image counts once, however many captions it has, as does a text: see `null._median_doubt`.
    for_image = with_others & left_out.is_first_image
    for_caption = with_others & left_out.is_first_caption
    distributions.image_means = Histogram.of(((of_image - pair_cosines) / others)[for_image])
    distributions.caption_means = Histogram.of(((of_caption - pair_cosines) / others)[for_caption])
    return distributions


def _without_own(terms: torch.Tensor, start: int) -> torch.Tensor:
    """Return rows of an (N, N) matrix from `start`, with 0 on its diagonal."""
    terms.diagonal(start).zero_()
    return terms


def _rivals(
    cosines: torch.Tensor, own: torch.Tensor, sums: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return logsumexp_{j != i} scale S_ij, from (N,) sums of exp(scale (S_ij - S_ii))."""
    rivals = sums.log() + scale * own
    # Candidates that are 0.88 above the own partner, at a scale of 100, overflow; those as far
    # below vanish.
    lost = (sums.isinf() | (sums == 0)).nonzero()[:, 0]
    if len(lost) and len(own) > 1:
        logits = scale * cosines[lost]
        logits[torch.arange(len(lost), device=lost.device), lost] = -math.inf
        rivals[lost] = logits.logsumexp(dim=1)
    return rivals
