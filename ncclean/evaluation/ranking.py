"""The rank of the first right answer among the nearest neighbours of each query, in bounded memory.

Recall and accuracy follow from it for every k, and a paired bootstrap resamples it.
"""

from __future__ import annotations

import torch

# Similarities that exist at a time: 128 MB of float32.
_MOST_SIMILARITIES = 1 << 25


def hit_depth(
    query: torch.Tensor,
    gallery: torch.Tensor,
    query_group: torch.Tensor,
    gallery_group: torch.Tensor,
    deepest: int,
    chunk: int = 1024,
) -> torch.Tensor:
    """(Q,) rank, from 0, of each query's first neighbour from its own group.

    query (Q, d) and gallery (G, d), compared by inner product; query_group (Q,) and gallery_group
    (G,) tell which belong together. `deepest` where none is among the `deepest` nearest. At most
    `chunk` rows of similarities exist at a time, fewer for a large gallery.

    The place is that in the list of the nearest, not the number of larger similarities, so that a
    model with one embedding for everything scores at chance.
    """
    query_group, gallery_group = query_group.to(query.device), gallery_group.to(query.device)
    rows = max(1, min(chunk, _MOST_SIMILARITIES // max(1, len(gallery))))
    depths = []
    for part, group in zip(query.split(rows), query_group.split(rows), strict=True):
        similarity = part @ gallery.T
        nearest = similarity.topk(min(deepest, len(gallery)), dim=1).indices
        hits = gallery_group[nearest] == group[:, None]
        first = hits.float().argmax(dim=1)
        depths.append(torch.where(hits.any(dim=1), first, deepest))
    return torch.cat(depths)
