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
    owners = text_to_image.to(text.device)
    images = torch.arange(len(image), device=text.device)
    depths = {
        "image_to_text": _hit_depth(image, text, owners, images, max(ks), chunk),
        "text_to_image": _hit_depth(text, image, images, owners, max(ks), chunk),
    }
    for name, depth in depths.items():
        for k in ks:
            results[f"{name}_R@{k}"] = float((depth < k).float().mean())
    results["rsum"] = 100 * sum(results.values())
    return results


def _hit_depth(
    query: torch.Tensor,
    gallery: torch.Tensor,
    gallery_image: torch.Tensor,
    query_image: torch.Tensor,
    deepest: int,
    chunk: int,
) -> torch.Tensor:
    """(Q,) position of each query's first neighbour of its own image; `deepest` where none is.

    gallery_image (G,) and query_image (Q,) name the image that each row belongs to.
    """
    depths = []
    for start in range(0, len(query), chunk):
        similarity = query[start : start + chunk] @ gallery.T
        nearest = similarity.topk(min(deepest, len(gallery)), dim=1).indices
        hits = gallery_image[nearest] == query_image[start : start + chunk, None]
        first = hits.float().argmax(dim=1)
        depths.append(torch.where(hits.any(dim=1), first, deepest))
    return torch.cat(depths)
