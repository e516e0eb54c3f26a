"""Rank the right answer to each query: zero-shot classification and retrieval.

Recall and accuracy follow from it for every k, and a paired bootstrap resamples it. Similarities
are computed in chunks, without the full matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

# Similarities held at a time: 128 MB of float32.
_MOST_SIMILARITIES = 1 << 25
TOP = 5
# Prompts encoded in one call: enough to fill a device, few enough for its memory.
_PROMPTS_AT_A_TIME = 4096
KS = (1, 5, 10)
# The "1K test" of MS-COCO: the 5,000 test images as five galleries of 1,000.
FOLDS = 5
FOLD_IMAGES = 1000


def hit_depth(
    query: torch.Tensor,
    gallery: torch.Tensor,
    query_group: torch.Tensor,
    gallery_group: torch.Tensor,
    deepest: int,
    chunk: int = 1024,
) -> torch.Tensor:
    """Return (Q,) ranks, from 0, of each query's first neighbour of its own group.

    `query` (Q, d) and `gallery` (G, d) are compared by inner product; `query_group` (Q,) and
    `gallery_group` (G,) say which belong together. `deepest` if none is among the `deepest`
    nearest. At most `chunk` rows of similarities exist at a time, fewer for a large gallery.

    The rank is the position in the list of the nearest, not the number of larger similarities, so
    that a model with one embedding for everything scores at chance.
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


def classifier_weights(
    encode: Callable[[list[str]], torch.Tensor], classnames: Sequence[str], templates: Sequence[str]
) -> torch.Tensor:
    """Return (C, d) weights of a zero-shot classifier: normalised mean embeddings of prompts.

    `encode` maps prompts to (P, d) normalised embeddings; `{c}` in a template stands for the class
    name, as in clip_benchmark's files.
    """
    rows = []
    step = max(1, _PROMPTS_AT_A_TIME // len(templates))
    for start in range(0, len(classnames), step):
        names = classnames[start : start + step]
        prompts = [template.replace("{c}", name) for name in names for template in templates]
        embedded = encode(prompts).unflatten(0, (len(names), len(templates)))
        rows.append(F.normalize(embedded.mean(dim=1), dim=-1))
    return torch.cat(rows)


def class_depth(
    image: torch.Tensor, weights: torch.Tensor, labels: torch.Tensor, chunk: int = 1024
) -> torch.Tensor:
    """Return (N,) ranks of the true class among the nearest, from 0; `TOP` if it is not there.

    `image` (N, d) are embeddings, `weights` (C, d) those of the classes, `labels` (N,) the true
    ones.
    """
    classes = torch.arange(len(weights), device=weights.device)
    return hit_depth(image, weights, labels, classes, TOP, chunk)


@dataclass(frozen=True)
class RetrievalDepths:
    """The rank, from 0, at which each query first finds its partner; see `ranking.hit_depth`.

    `image` (N,): of each image among the captions; `caption` (M,): of each caption among the
    images.
    """

    image: torch.Tensor
    caption: torch.Tensor


def retrieval_depths(
    image: torch.Tensor,
    text: torch.Tensor,
    text_to_image: torch.Tensor,
    deepest: int = max(KS),
    chunk: int = 1024,
) -> RetrievalDepths:
    """Return ranks of the right answers of N images among M captions, and vice versa.

    `image` (N, d) and `text` (M, d) are L2-normalised; `text_to_image` (M,) is each caption's
    image. Raises `ValueError` unless `text_to_image` names an image for each caption.
    """
    _check(image, text, text_to_image)
    images = torch.arange(len(image), device=image.device)
    return RetrievalDepths(
        image=hit_depth(image, text, images, text_to_image, deepest, chunk),
        caption=hit_depth(text, image, text_to_image, images, deepest, chunk),
    )


def recall_at_k(
    image: torch.Tensor,
    text: torch.Tensor,
    text_to_image: torch.Tensor,
    ks: Sequence[int] = KS,
    chunk: int = 1024,
) -> dict[str, float]:
    """Return the recall at k of image-to-text and text-to-image retrieval.

    `image` (N, d) and `text` (M, d) are L2-normalised embeddings; `text_to_image` (M,) is the index
    of the image that each caption describes. Image to text counts a hit when any of the image's
    captions is among the k nearest. Returns `image_to_text_R@k`, `text_to_image_R@k` in [0, 1] and
    `rsum`, the sum of all recalls in percent. Only `chunk` rows of similarities exist at a time.
    Raises `ValueError` where `text_to_image` does not name an image for each caption.
    """
    depths = retrieval_depths(image, text, text_to_image, max(ks), chunk)
    results: dict[str, float] = {}
    for name, depth in (("image_to_text", depths.image), ("text_to_image", depths.caption)):
        for k in ks:
            results[f"{name}_R@{k}"] = float((depth < k).float().mean())
    results["rsum"] = 100 * sum(results.values())
    return results


def fold_recall(
    image: torch.Tensor,
    text: torch.Tensor,
    text_to_image: torch.Tensor,
    ks: Sequence[int] = KS,
    folds: int = FOLDS,
    fold_images: int = FOLD_IMAGES,
    chunk: int = 1024,
) -> dict[str, float]:
    """Return the recall at k as the mean over folds of the images, as in MS-COCO's 1K test.

    Fold f holds the images from f * fold_images on, in the given order, with all their captions.
    Images past the last fold are omitted. Raises `ValueError` if there are too few.
    """
    _check(image, text, text_to_image)
    if len(image) < folds * fold_images:
        raise ValueError(f"{folds} folds of {fold_images} images, but there are {len(image)}")
    recalls = []
    for start in range(0, folds * fold_images, fold_images):
        inside = (text_to_image >= start) & (text_to_image < start + fold_images)
        fold_image = image[start : start + fold_images]
        captions = text[inside.to(text.device)]
        recalls.append(recall_at_k(fold_image, captions, text_to_image[inside] - start, ks, chunk))
    return {name: sum(fold[name] for fold in recalls) / folds for name in recalls[0]}


def _check(image: torch.Tensor, text: torch.Tensor, text_to_image: torch.Tensor) -> None:
    if not len(image) or not len(text):
        raise ValueError("retrieval needs at least one image and one caption")
    if text_to_image.shape != (len(text),):
        raise ValueError(f"{len(text)} captions, but text_to_image is {tuple(text_to_image.shape)}")
    if int(text_to_image.min()) < 0 or int(text_to_image.max()) >= len(image):
        raise ValueError(f"text_to_image names an image that is not among the {len(image)}")
