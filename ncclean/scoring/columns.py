"""From the embeddings of one shard to its score columns and the statistics for finalize."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ncclean.scoring.blocks import BlockStatistics, block_ids, known_mismatches
from ncclean.scoring.clip_loss import normalised_score
from ncclean.scoring.mixture import loss_histogram, pair_losses
from ncclean.scoring.ncu import forget_mask, partner_confidence
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions

_PIECE_ROWS = 4096
Scored = tuple[np.ndarray, "BlockScores"]
MapBlocks = Callable[[Callable[[np.ndarray], Scored], Iterable[np.ndarray]], Iterable[Scored]]
_COLUMNS: dict[str, Any] = {
    "similarity": np.float32,
    "ncu_confidence": np.float32,
    "ncu_forget": np.bool_,
    "disncl_clean": np.bool_,
    "neg_clip_loss": np.float32,
    "i2t_rank": np.int32,
    "t2i_rank": np.int32,
    "block": np.int32,
}


@dataclass
class BlockScores:
    """Per scorable pair, in input order: numpy arrays of length n."""

    similarity: np.ndarray
    ncu_confidence: np.ndarray
    ncu_forget: np.ndarray
    disncl_clean: np.ndarray
    neg_clip_loss: np.ndarray
    i2t_rank: np.ndarray
    t2i_rank: np.ndarray
    block: np.ndarray
    distributions: Distributions = field(default_factory=Distributions)

    @classmethod
    def empty(cls, pairs: int) -> BlockScores:
        """Scores to be filled in."""
        columns: dict[str, Any] = {name: np.empty(pairs, kind) for name, kind in _COLUMNS.items()}
        return cls(**columns)

    def put(self, rows: np.ndarray, scores: BlockScores) -> None:
        """Take over the scores of some pairs, by their (m,) places among all."""
        for name in _COLUMNS:
            getattr(self, name)[rows] = getattr(scores, name)
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
    groups: np.ndarray | None = None,
    each_block: MapBlocks = map,
) -> BlockScores:
    """Score the n pairs of a shard from their (n, d) L2-normalised embeddings.

    `groups` are (n,) names, None for pairs of no group: each has distributions of its own too.
    `each_block` is `map` or that of an executor, which scores several blocks at once.

    The cosine of a pair comes from the float32 embeddings. Everything relative to other pairs
    comes from the embeddings rounded to float16, as they are exported: whoever has the exported
    embeddings can recompute it exactly.
    """
    n = len(image)
    similarity = pair_cosines(image, text)
    blocks = block_ids(n, block_size, seed, shard)
    out = BlockScores.empty(n)
    out.distributions.matched = Histogram.of(similarity)

    def block(members: np.ndarray) -> Scored:
        index = torch.from_numpy(members).to(image.device)
        own, names = similarity[index], None if groups is None else groups[members]
        return members, _score_block(image[index], text[index], own, names, scale, forget_percent)

    count = int(blocks.max()) + 1 if n else 0
    for members, scores in each_block(block, [np.flatnonzero(blocks == b) for b in range(count)]):
        out.put(members, scores)
    out.similarity[:] = similarity.cpu().numpy()
    out.block[:] = blocks
    # No other image and no other caption fits better, see `ncclean.scoring.disncl.mutual_match`.
    out.disncl_clean[:] = (out.i2t_rank == 0) & (out.t2i_rank == 0)
    losses = pair_losses(torch.from_numpy(out.neg_clip_loss), scale)
    out.distributions.losses = loss_histogram(losses)
    return out


def _score_block(
    image: torch.Tensor,
    text: torch.Tensor,
    similarity: torch.Tensor,
    groups: np.ndarray | None,
    scale: float,
    forget_percent: float,
) -> BlockScores:
    """What the (N, N) cosines of a block say; `similarity`, `disncl_clean` and `block` are left."""
    cosines = image.half().float() @ text.half().float().T
    block = BlockStatistics.of(cosines, scale)
    partitions = block.i2t_partition, block.t2i_partition
    confidence = partner_confidence(scale * block.own, *partitions)
    out = BlockScores.empty(len(image))
    out.ncu_confidence[:] = confidence.cpu().numpy()
    out.ncu_forget[:] = forget_mask(confidence, forget_percent).cpu().numpy()
    out.neg_clip_loss[:] = normalised_score(block.own, *partitions, scale).cpu().numpy()
    out.i2t_rank[:] = block.i2t_rank.cpu().numpy()
    out.t2i_rank[:] = block.t2i_rank.cpu().numpy()
    out.distributions = block.mismatches
    if groups is not None:
        _add_groups(out.distributions, cosines, groups, similarity)
    return out


def _add_groups(
    distributions: Distributions, cosines: torch.Tensor, groups: np.ndarray, own: torch.Tensor
) -> None:
    """Add a block's (N, N) cosines among the pairs of each group, and those of its pairs."""
    for name in sorted({name for name in groups if name is not None}):
        rows = torch.from_numpy(np.flatnonzero(groups == name)).to(cosines.device)
        group = distributions.group(name)
        group += known_mismatches(cosines[rows][:, rows])
        group.matched += Histogram.of(own[rows])


def pair_cosines(image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """(n,) float32 cosines of (n, d) L2-normalised embeddings, in pieces of bounded memory."""
    pieces = zip(image.split(_PIECE_ROWS), text.split(_PIECE_ROWS), strict=True)
    return torch.cat([(v.float() * t.float()).sum(dim=1) for v, t in pieces])
