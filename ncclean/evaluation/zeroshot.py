"""Zero-shot classification with prompt ensembles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F


def classifier_weights(
    encode: Callable[[list[str]], torch.Tensor], classnames: Sequence[str], templates: Sequence[str]
) -> torch.Tensor:
    """(C, d) L2-normalised mean of the embeddings of each class's prompts.

    `encode` maps prompts to (P, d) normalised embeddings; `{c}` in a template stands for the
    class name, as in clip_benchmark's files.
    """
    rows = []
    for name in classnames:
        prompts = encode([template.replace("{c}", name) for template in templates])
        rows.append(F.normalize(prompts.mean(dim=0), dim=0))
    return torch.stack(rows)


def zeroshot_accuracy(
    image: torch.Tensor, weights: torch.Tensor, labels: torch.Tensor
) -> dict[str, float]:
    """Accuracy of (N, d) image embeddings against (C, d) class weights, labels (N,).

    Returns `acc1`, `acc5` (1.0 where there are at most five classes) and
    `mean_per_class_recall`, named as clip_benchmark names them.
    """
    logits = image @ weights.T
    nearest = logits.topk(min(5, len(weights)), dim=1).indices
    correct = nearest == labels[:, None]
    per_class = [
        float(correct[labels == label, 0].float().mean()) for label in labels.unique().tolist()
    ]
    return {
        "acc1": float(correct[:, 0].float().mean()),
        "acc5": float(correct.any(dim=1).float().mean()),
        "mean_per_class_recall": sum(per_class) / len(per_class),
    }
