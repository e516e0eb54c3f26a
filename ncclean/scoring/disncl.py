"""DisNCL's clean filter: pairs that are each other's best match."""

from __future__ import annotations

import torch


def mutual_match(similarity: torch.Tensor) -> torch.Tensor:
    """Return (N,) bool from (N, N) cosines: S_ii >= every S_ij and S_ii >= every S_ji.

    Ties count as matches, since one image often comes with several captions.
    """
    own = similarity.diagonal()
    return (own[:, None] >= similarity).all(dim=1) & (own >= similarity).all(dim=0)
