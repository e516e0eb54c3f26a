"""Image-text retrieval recall, with several captions per image and without the full matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def recall_at_k(
    image: torch.Tensor,
    text: torch.Tensor,
    text_to_image: torch.Tensor,
    ks: Sequence[int] = (1, 5, 10),
    chunk: int = 1024,
) -> dict[str, float]:
    """Recall at k in both directions.

    image: (N, d) and text: (M, d) L2-normalised embeddings; text_to_image: (M,) index of the
    image that each caption describes. Image to text counts a hit when any of the image's
    captions is among the k nearest. Returns `image_to_text_R@k`, `text_to_image_R@k` in [0, 1]
    and `rsum`, the sum of all recalls in percent. Only `chunk` rows of similarities exist at a
    time.
    """
    results: dict[str, float] = {}
    text_to_image = text_to_image.to(text.device)
    deepest = max(ks)
    owners = torch.arange(len(image), device=text.device)
    i2t = _hit_depth(image, text, lambda nearest: text_to_image[nearest], owners, deepest, chunk)
    t2i = _hit_depth(text, image, lambda nearest: nearest, text_to_image, deepest, chunk)
    for name, depth in (("image_to_text", i2t), ("text_to_image", t2i)):
        for k in ks:
            results[f"{name}_R@{k}"] = float((depth < k).float().mean())
    results["rsum"] = 100 * sum(results.values())
    return results


def _hit_depth(query, gallery, owner_of, wanted, deepest, chunk):  # type: ignore[no-untyped-def]
    """(Q,) position of the first correct neighbour of each query; `deepest` where none is."""
    deepest = min(deepest, len(gallery))
    depths = []
    for start in range(0, len(query), chunk):
        similarity = query[start : start + chunk] @ gallery.T
        nearest = similarity.topk(deepest, dim=1).indices
        hits = owner_of(nearest) == wanted[start : start + chunk, None]
        first = hits.float().argmax(dim=1)
        depths.append(torch.where(hits.any(dim=1), first, torch.full_like(first, deepest)))
    return torch.cat(depths)
