"""From the embeddings of one shard to its score columns and the statistics for finalize."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from ncclean.scoring.blocks import block_ids, partner_ranks
from ncclean.scoring.clip_loss import neg_clip_loss
from ncclean.scoring.disncl import mutual_match
from ncclean.scoring.mixture import loss_histogram, pair_losses
from ncclean.scoring.ncu import clean_confidence, forget_mask
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions


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


def score_pairs(
    image: torch.Tensor,
    text: torch.Tensor,
    *,
    scale: float,
    shard: str,
    block_size: int,
    forget_percent: float,
    seed: int,
) -> BlockScores:
    """Score the n pairs of a shard from their (n, d) L2-normalised embeddings.

    The cosine of a pair comes from the float32 embeddings. Everything relative to other pairs
    comes from the embeddings rounded to float16, as they are exported: whoever has the exported
    embeddings can recompute it exactly.
    """
    n = len(image)
    similarity = (image.float() * text.float()).sum(dim=1)
    blocks = block_ids(n, block_size, seed, shard)
    out = BlockScores(
        similarity=similarity.cpu().numpy(),
        ncu_confidence=np.empty(n, dtype=np.float32),
        ncu_forget=np.empty(n, dtype=bool),
        disncl_clean=np.empty(n, dtype=bool),
        neg_clip_loss=np.empty(n, dtype=np.float32),
        i2t_rank=np.empty(n, dtype=np.int32),
        t2i_rank=np.empty(n, dtype=np.int32),
        block=blocks,
    )
    out.distributions.matched = Histogram.of(similarity)
    for number in range(int(blocks.max()) + 1 if n else 0):
        members = np.flatnonzero(blocks == number)
        index = torch.from_numpy(members).to(image.device)
        cosines = image[index].half().float() @ text[index].half().float().T
        confidence = clean_confidence(cosines, scale)
        i2t, t2i = partner_ranks(cosines)
        out.ncu_confidence[members] = confidence.cpu().numpy()
        out.ncu_forget[members] = forget_mask(confidence, forget_percent).cpu().numpy()
        out.disncl_clean[members] = mutual_match(cosines).cpu().numpy()
        out.neg_clip_loss[members] = neg_clip_loss(cosines, scale).cpu().numpy()
        out.i2t_rank[members] = i2t.cpu().numpy()
        out.t2i_rank[members] = t2i.cpu().numpy()
        size = len(members)
        others = ~torch.eye(size, dtype=torch.bool, device=cosines.device)
        out.distributions.mismatched += Histogram.of(cosines[others])
    losses = pair_losses(torch.from_numpy(out.neg_clip_loss), scale)
    out.distributions.losses = loss_histogram(losses)
    return out
