"""NCU: unlearn noisy correspondence with the help of negated captions.

"Unlearning the Noisy Correspondence Makes CLIP More Robust". Phase HN learns, for every caption, a
negative text that says it does not hold (`ncu_prompt`); phase UL moves the images of mismatched
pairs towards that text, and those of matched pairs towards all captions that fit (`ncu_targets`).
Here are the losses of both phases. Embeddings are those of the global batch, (N, d), L2-normalised.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from ncclean.scoring.ncu import forget_mask, partner_confidence
from ncclean.training.objectives.base import Terms
from ncclean.training.objectives.ncu_targets import (
    realigned,
    realignment,
    realignment_loss,
    unlearning_targets,
)
from ncclean.training.objectives.options import NcuOptions, Variant
from ncclean.training.objectives.row_blocks import both_ways, by_rows, own_and_all, row_cosines
from ncclean.training.objectives.similarity import paired_cosines, precise

__all__ = [
    "NcuOptions",
    "distance_loss",
    "forget_split",
    "hardest_negative_terms",
    "matching_loss",
    "realignment_loss",
    "relation_loss",
    "separation_loss",
    "unlearning_targets",
    "unlearning_terms",
]


@torch.no_grad()
def forget_split(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    percent: float,
    variant: Variant = "published",
) -> torch.Tensor:
    """NCU's forget set (Eq. 2): (N,) bool, the least confident percent of the batch.

    In the `released` variant the confidence is that of the images alone, the softmax over captions.
    """
    (own, image_to_text), (_, text_to_image) = own_and_all(image, text, scale)
    if variant == "released":
        return forget_mask((own - image_to_text).exp(), percent)
    return forget_mask(partner_confidence(own, image_to_text, text_to_image), percent)


def hardest_negative_terms(
    image: torch.Tensor,
    text: torch.Tensor,
    negative: torch.Tensor,
    scale: torch.Tensor | float,
    forget: torch.Tensor,
    options: NcuOptions,
) -> Terms:
    """NCU's loss of phase HN (Eq. 6) on retained pairs: `separation`, `relation`, `matching`."""
    image, text, negative = (embedding[~forget] for embedding in (image, text, negative))
    if options.relation == "distance":
        relation = distance_loss(text, negative)
    else:
        form = "intra" if options.variant == "released" else options.relation
        relation = relation_loss(text, negative, form)
    separation = separation_loss(text, negative, options.alpha, options.beta)
    return {
        "separation": options.negative_weight * separation,
        "relation": options.negative_weight * relation,
        "matching": matching_loss(image, text, negative, scale),
    }


def unlearning_terms(
    image: torch.Tensor,
    text: torch.Tensor,
    negative: torch.Tensor | None,
    scale: torch.Tensor | float,
    forget: torch.Tensor,
    options: NcuOptions,
) -> Terms:
    """NCU's loss of phase UL (Eq. 12): `realignment`, and `separation` with negative texts."""
    targets = realigned(
        image, text, negative, forget,
        gamma=options.gamma, epsilon=options.epsilon, max_iterations=options.max_iterations,
        tolerance=options.tolerance, last_column=options.last_column, unlearn=options.unlearn,
        variant=options.variant,
    )  # fmt: skip
    terms = {"realignment": realignment(image, text, negative, scale, targets)}
    if negative is not None:
        terms["separation"] = separation_loss(text, negative, options.alpha, options.beta)
    return terms


def separation_loss(
    text: torch.Tensor, negative: torch.Tensor, alpha: float = -0.7, beta: float = -0.2
) -> torch.Tensor:
    """NCU's Eq. 3, mean of [alpha - c]+ + [c - beta]+: keeps c = <t_i, n_i> in [alpha, beta]."""
    cosine = paired_cosines(text, negative)
    return _per_pair((alpha - cosine).relu() + (cosine - beta).relu())


def relation_loss(
    text: torch.Tensor, negative: torch.Tensor, form: Literal["cross", "intra"] = "cross"
) -> torch.Tensor:
    """NCU's Eq. 4: negative texts relate to one another as their captions do.

    `cross` is Eq. 4, (<t_i, n_j> - <t_j, n_i>)^2; `intra` what the authors' code computes,
    (<t_i, t_j> - <n_i, n_j>)^2.
    """
    if form not in ("cross", "intra"):
        raise ValueError(f"form takes cross or intra, got {form!r}")

    def squares(rows: slice) -> torch.Tensor:
        if form == "cross":
            one, other = both_ways(text, negative, rows)
        else:
            one, other = (row_cosines(captions, captions, rows) for captions in (text, negative))
        return (one - other).square().sum()

    return torch.stack(by_rows(squares, len(text))).sum() / max(1, len(text))


def distance_loss(text: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Mean of 2 - |t_i - n_i|, least for opposite vectors: NCU's Table 5, V2 in place of Eq. 4."""
    text, negative = precise(text, negative)
    return _per_pair(2 - torch.linalg.vector_norm(text - negative, dim=1))


def matching_loss(
    image: torch.Tensor, text: torch.Tensor, negative: torch.Tensor, scale: torch.Tensor | float
) -> torch.Tensor:
    """NCU's Eq. 5, a sigmoid loss: captions match their own images, negative texts all others.

    (1/N) sum_ij softplus(-m_ij scale <t_i, v_j>) + softplus(m_ij scale <n_i, v_j>), with m_ij 1
    for i = j and -1 otherwise. The paper's Eq. 5 lacks the minus sign before its logarithms.
    """

    def losses(rows: slice) -> torch.Tensor:
        matches, opposite = (
            scale * row_cosines(captions, image, rows) for captions in (text, negative)
        )
        sign = torch.full_like(matches, -1)
        sign.diagonal(rows.start or 0).fill_(1)
        return (F.softplus(-sign * matches) + F.softplus(sign * opposite)).sum()

    return torch.stack(by_rows(losses, len(text))).sum() / max(1, len(text))


def _per_pair(values: torch.Tensor) -> torch.Tensor:
    """(N, ...) -> the sum over N; a zero that is attached to the graph where there are no pairs."""
    return values.sum() / max(1, len(values))
