"""The methods that the papers compare with: CyCLIP, SoftCLIP, RINCE and gradient ascent.

Goel et al. 2022, "CyCLIP: Cyclic Contrastive Language-Image Pretraining", Eqs. 2 to 4: the CLIP
loss, and two consistencies of the shared space.

Gao et al. 2024, "SoftCLIP: Softer Cross-modal Alignment Makes CLIP Stronger": other captions count
as partly right if images resemble each other. The original finds resemblance from detected regions
and tags; here, with only embeddings, it is the model's own within-modality similarity.

Chuang et al. 2022, "Robust Contrastive Learning against Noisy Views", Eq. 6, RINCE: a contrastive
loss that saturates on pairs it cannot fit. As q goes to 0 it becomes InfoNCE plus log lambda; at
q = 1 it is symmetric, and robust to mismatched positives.

Gradient ascent is the baseline of NCU (section 5.3, Table 4): minus the CLIP loss on the forget set
against false positives, the CLIP loss with label smoothing on the rest against false negatives.
"""

from __future__ import annotations

import torch

from ncclean.training.objectives.base import (
    GlobalBatch,
    LossObjective,
    Objective,
    Terms,
    Tokenizer,
    method_phases,
)
from ncclean.training.objectives.clip import clip_loss, pair_losses
from ncclean.training.objectives.ncu import forget_split
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.similarity import (
    ALL,
    both_ways,
    by_rows,
    mean_or_zero,
    own_and_all,
    row_cosines,
)


def make_cyclip(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create CyCLIP's objective."""
    return LossObjective("cyclip", method_phases(options), cyclip_terms)


def cyclip_terms(
    image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, batch: GlobalBatch
) -> Terms:
    """Return CyCLIP's loss terms: the CLIP loss, and both consistencies, a quarter each."""
    return {
        "contrastive": clip_loss(image, text, scale),
        "in_modal": 0.25 * in_modal_consistency(image, text),
        "cross_modal": 0.25 * cross_modal_consistency(image, text),
    }


def in_modal_consistency(image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Return CyCLIP's in-modal term, (1/N) sum_jk (<v_j, v_k> - <t_j, t_k>)^2, a scalar.

    v are the (N, d) L2-normalised embeddings of the images, t those of their captions.
    """

    def squares(rows: slice) -> torch.Tensor:
        difference = row_cosines(image, image, rows) - row_cosines(text, text, rows)
        return difference.square().sum()

    return torch.stack(by_rows(squares, len(image))).sum() / len(image)


def cross_modal_consistency(image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Return CyCLIP's cross-modal term, (1/N) sum_jk (<v_j, t_k> - <v_k, t_j>)^2, a scalar.

    v are the (N, d) L2-normalised embeddings of the images, t those of their captions.
    """

    def squares(rows: slice) -> torch.Tensor:
        first, second = both_ways(image, text, rows)
        return (first - second).square().sum()

    return torch.stack(by_rows(squares, len(image))).sum() / len(image)


def make_softclip(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create SoftCLIP's objective: targets softened by the similarities within a modality."""

    def terms(
        image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, batch: GlobalBatch
    ) -> Terms:
        temperature = options.softclip_temperature
        return {"contrastive": softclip_loss(image, text, scale, temperature=temperature)}

    return LossObjective("softclip", method_phases(options), terms)


def softclip_loss(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    softness: float = 0.5,
    temperature: float = 0.07,
) -> torch.Tensor:
    """Return the SoftCLIP loss: mean of both cross-entropies to softened targets, a scalar.

    `image` and `text` are (N, d) L2-normalised. The targets of images are `softened_targets` of the
    images, those of captions of the captions; they are not trained through.
    """

    def losses(rows: slice) -> torch.Tensor:
        targets = (
            softened_targets(modality, softness, temperature, rows) for modality in (image, text)
        )
        return torch.stack(
            [
                -(target * logits.log_softmax(dim=1)).sum(dim=1)
                for target, logits in zip(targets, both_ways(image, text, rows, scale), strict=True)
            ]
        )

    image_to_text, text_to_image = torch.cat(by_rows(losses, len(image)), dim=1).unbind()
    return (image_to_text.mean() + text_to_image.mean()) / 2


@torch.no_grad()
def softened_targets(
    modality: torch.Tensor, softness: float = 0.5, temperature: float = 0.07, rows: slice = ALL
) -> torch.Tensor:
    """Return (N, N) softened targets, each row a distribution, from (N, d) unit embeddings.

    With `rows`, returns those rows, (R, N).

    1 - softness on the pair itself, and softness times the softmax of its cosines to all over
    `temperature`. This is not the model's own temperature: at a trained CLIP's 0.01 the softmax is
    nearly the identity (over 256 pairs it leaves 0 to 12 % to others, at 0.07 it leaves 14 to 87
    %).
    """
    target = softness * (row_cosines(modality, modality, rows) / temperature).softmax(dim=1)
    target.diagonal(rows.start or 0).add_(1 - softness)
    return target


def make_rince(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create RINCE's objective, at the model's own or a trained scale."""

    def terms(
        image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, batch: GlobalBatch
    ) -> Terms:
        return {"contrastive": rince_loss(image, text, scale)}

    trains = options.rince_scale == "trained"
    return LossObjective("rince", method_phases(options, train_scale=trains), terms)


def rince_loss(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    q: float = 0.1,
    density: float = 0.01,
) -> torch.Tensor:
    """RINCE loss, mean over pairs and directions of -pos^q / q + (density sum_all)^q / q, a scalar.

    `image` and `text` are (N, d) L2-normalised; pos = exp(scale cos) of the own partner, sum_all
    that of all N candidates with it. Powers are computed from logarithms: finite in float32 while q
    scale is below 88. The loss has no lower bound in the scale, which must not be trained.
    """
    directions = own_and_all(image, text, scale)
    paired, log_sums = directions[0, 0], directions[:, 1]
    log_density = torch.tensor(density, dtype=paired.dtype, device=paired.device).log()
    positive = (q * paired).exp()
    image_to_text, text_to_image = (
        (-positive + (q * (log_density + log_sum)).exp()).mean() / q
        for log_sum in log_sums.unbind()
    )
    return (image_to_text + text_to_image) / 2


def make_gradient_ascent(
    options: ObjectiveOptions, tokenizer: Tokenizer | None = None
) -> Objective:
    """Create the objective of gradient ascent."""
    ncu = options.ncu

    def terms(
        image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, batch: GlobalBatch
    ) -> Terms:
        forget = batch.is_forget
        if ncu.split != "table":
            forget = forget_split(image, text, scale, ncu.forget_percent)
        forgotten, retained = gradient_ascent_terms(image, text, scale, forget)
        return {"forget": forgotten, "retain": retained}

    return LossObjective("gradient_ascent", method_phases(options), terms)


def gradient_ascent_terms(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    forget: torch.Tensor,
    label_smoothing: float = 0.1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return minus the loss to forget, and the loss to retain, from embeddings and (N,) bool.

    Each is the CLIP loss of its set alone, with negatives from that set. The embeddings are (N, d)
    L2-normalised. An empty set gives a zero that is attached to the graph. The paper does not state
    its smoothing; 0.1 is ours.
    """
    forgotten = mean_or_zero(pair_losses(image[forget], text[forget], scale))
    retained = mean_or_zero(pair_losses(image[~forget], text[~forget], scale, label_smoothing))
    return -forgotten, retained
