"""Image-text retrieval recall, with several captions per image and without the full matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ncclean.evaluation.ranking import hit_depth

KS = (1, 5, 10)
# The "1K test" of MS-COCO: the 5,000 test images as five galleries of 1,000.
FOLDS = 5
FOLD_IMAGES = 1000


@dataclass(frozen=True)
class RetrievalDepths:
    """The rank at which each query first finds its partner, from 0; see `ranking.hit_depth`.

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
    """Ranks of the right answers in both directions, for (N, d) images and (M, d) captions, whose
    images `text_to_image` (M,) has.

    Raises `ValueError` where `text_to_image` does not name an image for each caption.
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
    """Recall at k of image-to-text and text-to-image retrieval.

    image: (N, d) and text: (M, d) L2-normalised embeddings; text_to_image: (M,) index of the
    image that each caption describes. Image to text counts a hit when any of the image's
    captions is among the k nearest. Returns `image_to_text_R@k`, `text_to_image_R@k` in [0, 1]
    and `rsum`, the sum of all recalls in percent. Only `chunk` rows of similarities exist at a
    time. Raises `ValueError` where `text_to_image` does not name an image for each caption.
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
    """Recall at k as the mean over folds of the images, as in MS-COCO's 1K test.

    Fold f holds the images from f * fold_images on, in the order given, with all their captions.
    Images past the last fold are left out. Raises `ValueError` if there are too few.
    """
    _check(image, text, text_to_image)
    if len(image) < folds * fold_images:
        raise ValueError(f"{folds} folds of {fold_images} images, but there are {len(image)}")
    recalls = []
    for start in range(0, folds * fold_images, fold_images):
        inside = (text_to_image >= start) & (text_to_image < start + fold_images)
        here = image[start : start + fold_images]
        captions = text[inside.to(text.device)]
        recalls.append(recall_at_k(here, captions, text_to_image[inside] - start, ks, chunk))
    return {name: sum(fold[name] for fold in recalls) / folds for name in recalls[0]}


def _check(image: torch.Tensor, text: torch.Tensor, text_to_image: torch.Tensor) -> None:
    if not len(image) or not len(text):
        raise ValueError("retrieval needs at least one image and one caption")
    if text_to_image.shape != (len(text),):
        raise ValueError(f"{len(text)} captions, but text_to_image is {tuple(text_to_image.shape)}")
    if int(text_to_image.min()) < 0 or int(text_to_image.max()) >= len(image):
        raise ValueError(f"text_to_image names an image that is not among the {len(image)}")
