"""Compute score columns, and the statistics for finalize, from the embeddings of one shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ncclean.scoring.blocks import BlockStatistics, block_ids, known_mismatches
from ncclean.scoring.clip_loss import binned, mismatched_scores, normalised_score
from ncclean.scoring.mixture import loss_histogram, pair_losses
from ncclean.scoring.ncu import forget_mask, partner_confidence
from ncclean.scoring.null import Histogram
from ncclean.scoring.pool import Pool, Rivals
from ncclean.scoring.stats import Distributions

_PIECE_ROWS = 4096
# Pairs for known mismatches of `neg_clip_loss`: an eighth of a block's tells as much about its
# distribution, in an eighth of the time.
_TILE_ROWS = 256
Rows = torch.Tensor | slice
Scored = tuple[np.ndarray, "BlockScores"]
MapBlocks = Callable[[Callable[[np.ndarray], Scored], Iterable[np.ndarray]], Iterable[Scored]]


@dataclass
class BlockScores:
    """The scores of n pairs of a shard in input order, and the histograms of their cosines.

    `columns` maps a column of the score table to its (n,) values.
    """

    pairs: int
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    distributions: Distributions = field(default_factory=Distributions)

    def put(self, rows: np.ndarray, scores: BlockScores) -> None:
        """Copy the scores of a block of m pairs to their rows (m,), and add its histograms."""
        for name, values in scores.columns.items():
            column = self.columns.setdefault(name, np.empty(self.pairs, values.dtype))
            column[rows] = values
        self.distributions += scores.distributions


def score_pairs(
    image: torch.Tensor,
    text: torch.Tensor,
    *,
    scale: float,
    shard: str,
    block_size: int,
    forget_percent: float,
    seed: int,
    images: np.ndarray | None = None,
    captions: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    pool: tuple[Pool, np.ndarray] | None = None,
    each_block: MapBlocks = map,
) -> BlockScores:
    """Score the n pairs of a shard from their (n, d) L2-normalised embeddings.

    `images` and `captions` (n,) number images and texts, None if all differ: captions of one image
    are not candidates of each other, and equal captions of other images are not known mismatches.
    `groups` (n,) are labels, each with its own histograms; pairs without a label (None) are a group
    too. `pool` is a pool with the pairs' (n,) sample numbers: it replaces the block as the source
    of the rivals of `neg_clip_loss`. `each_block` is `map`, or a replacement that scores several
    blocks at once. The histograms are of the cosine and of `neg_clip_loss`.

    The cosine of a pair is computed from the float32 embeddings. Everything relative to other pairs
    is computed from the embeddings rounded to float16, as exported, from which it can be recomputed
    exactly.
    """
    n = len(image)
    similarity = pair_cosines(image, text)
    blocks = block_ids(n, block_size, seed, shard)
    out = BlockScores(n)
    out.distributions.matched = Histogram.of(similarity)

    def block(members: np.ndarray) -> Scored:
        index = torch.from_numpy(members).to(image.device)
        block_cosines, names = similarity[index], None if groups is None else groups[members]
        shared = _Shared.of(images, captions, members, image.device)
        vectors = image[index], text[index]
        rivals = None
        if pool is not None:
            v, t = (side.half().float() for side in vectors)
            rivals = pool[0].rivals(v, t, pool[1][members], scale)
        scores = _score_block(*vectors, block_cosines, shared, names, rivals, scale, forget_percent)
        return members, scores

    count = int(blocks.max()) + 1 if n else 0
    for members, scores in each_block(block, [np.flatnonzero(blocks == b) for b in range(count)]):
        out.put(members, scores)
    out.columns |= {"similarity": similarity.cpu().numpy(), "block": blocks}
    if n:
        losses = pair_losses(torch.from_numpy(out.columns["neg_clip_loss"]), scale)
        out.distributions.losses = loss_histogram(losses)
    return out


def _score_block(
    image: torch.Tensor,
    text: torch.Tensor,
    similarity: torch.Tensor,
    shared: _Shared,
    groups: np.ndarray | None,
    rivals: Rivals | None,
    scale: float,
    forget_percent: float,
) -> BlockScores:
    """Return the scores given by the (N, N) cosines of a block.

    `rivals` are a pool's, None for the others of the block.
    """
    cosines = image.half().float() @ text.half().float().T
    block = BlockStatistics.of(cosines, scale, shared.images, shared.captions)
    partitions = block.i2t_partition, block.t2i_partition
    confidence = partner_confidence(scale * block.own, *partitions)
    forget = forget_mask(confidence, forget_percent)
    against = block.i2t_rivals, block.t2i_rivals
    if rivals is not None:
        against = rivals.i2t, rivals.t2i
        i2t, t2i = (torch.logaddexp(partition, scale * block.own) for partition in against)
        partitions = i2t, t2i
    normalised = normalised_score(block.own, *partitions, scale)
    columns = {
        "ncu_confidence": confidence,
        "neg_clip_loss": normalised,
        "i2t_rank": block.i2t_rank,
        "t2i_rank": block.t2i_rank,
        # No other image or caption fits better, see `scoring.disncl.mutual_match`.
        "disncl_clean": (block.i2t_rank == 0) & (block.t2i_rank == 0),
    }
    out = BlockScores(len(image), {name: of.cpu().numpy() for name, of in columns.items()})
    out.columns["ncu_split"] = np.where(forget.cpu().numpy(), "forget", "retain")

    def between(rows: Rows) -> Distributions:
        return known_mismatches(cosines[rows][:, rows], *shared.among(rows))

    def scored_between(rows: Rows) -> Distributions:
        among = None if rivals is None else (rivals.in_pool[rows], rivals.in_pool[rows])
        i2t, t2i = (partition[rows] for partition in against)
        scores = mismatched_scores(cosines[rows][:, rows], i2t, t2i, scale, among)
        return known_mismatches(binned(scores), *shared.among(rows))

    out.distributions = block.mismatches
    own_scores = binned(normalised)
    of_score = Distributions(matched=Histogram.of(own_scores))
    step = max(1, round(len(image) / _TILE_ROWS))
    for first in range(min(step, len(image))):
        of_score += scored_between(slice(first, None, step))
    out.distributions.scores["neg_clip_loss"] = of_score
    if groups is not None:
        _add_groups(out.distributions, groups, similarity, between)
        _add_groups(of_score, groups, own_scores, scored_between)
    return out


def _add_groups(
    distributions: Distributions,
    groups: np.ndarray,
    pair_scores: torch.Tensor,
    between: Callable[[Rows], Distributions],
) -> None:
    """Add the scores of each group's pairs, and of mismatches `between` them."""
    for name in dict.fromkeys(groups.tolist()):
        rows = torch.from_numpy(np.flatnonzero(np.equal(groups, name))).to(pair_scores.device)
        group = distributions.group(name)
        group += between(rows)
        group.matched += Histogram.of(pair_scores[rows])


@dataclass(frozen=True)
class _Shared:
    """(N,) numbers of the images and the texts of a block's pairs, None if all differ."""

    images: torch.Tensor | None
    captions: torch.Tensor | None

    @classmethod
    def of(
        cls,
        images: np.ndarray | None,
        captions: np.ndarray | None,
        members: np.ndarray,
        device: torch.device,
    ) -> _Shared:
        return cls(
            *(
                None if numbers is None else torch.from_numpy(numbers[members]).to(device)
                for numbers in (images, captions)
            )
        )

    def among(self, rows: Rows) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The numbers of some of the pairs."""
        images, captions = (
            None if numbers is None else numbers[rows] for numbers in (self.images, self.captions)
        )
        return images, captions


def caption_numbers(captions: Sequence[str | None]) -> np.ndarray:
    """Return (n,) numbers that are equal for equal captions; a missing caption equals no other."""
    numbers: dict[str | int, int] = {}
    named = (row if caption is None else caption for row, caption in enumerate(captions))
    return np.array([numbers.setdefault(name, len(numbers)) for name in named], dtype=np.int64)


def pair_cosines(image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Return (n,) float32 cosines of (n, d) unit embeddings, in pieces of bounded memory."""
    pieces = zip(image.split(_PIECE_ROWS), text.split(_PIECE_ROWS), strict=True)
    return torch.cat([(v.float() * t.float()).sum(dim=1) for v, t in pieces])
