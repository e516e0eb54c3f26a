"""Zero-shot classification with prompt ensembles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from ncclean.evaluation.ranking import hit_depth

TOP = 5
# Prompts encoded in one call: enough to fill a device, few enough for its memory.
_PROMPTS_AT_A_TIME = 4096


def classifier_weights(
    encode: Callable[[list[str]], torch.Tensor], classnames: Sequence[str], templates: Sequence[str]
) -> torch.Tensor:
    """(C, d) L2-normalised mean of the embeddings of each class's prompts.

    `encode` maps prompts to (P, d) normalised embeddings; `{c}` in a template stands for the
    class name, as in clip_benchmark's files.
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
    """(N,) rank of the true class among the nearest, from 0; `TOP` where it is not among them.

    image (N, d), weights (C, d), labels (N,).
    """
    classes = torch.arange(len(weights), device=weights.device)
    return hit_depth(image, weights, labels, classes, TOP, chunk)


def zeroshot_accuracy(
    image: torch.Tensor, weights: torch.Tensor, labels: torch.Tensor
) -> dict[str, float]:
    """Accuracy of (N, d) image embeddings against (C, d) class weights, labels (N,).

    Returns `acc1`, `acc5` (1.0 where there are at most five classes) and
    `mean_per_class_recall`, named as clip_benchmark names them.
    """
    depth = class_depth(image, weights, labels)
    labels = labels.to(depth.device)
    correct = (depth == 0).float()
    per_class = [float(correct[labels == label].mean()) for label in labels.unique().tolist()]
    return {
        "acc1": float(correct.mean()),
        "acc5": float((depth < TOP).float().mean()),
        "mean_per_class_recall": sum(per_class) / len(per_class),
    }
