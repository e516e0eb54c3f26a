"""The objectives by name, as the trainer takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from ncclean.errors import InputError
from ncclean.training.objectives.base import (
    Embeddings,
    GlobalBatch,
    Objective,
    PerPairObjective,
    Phase,
    Terms,
    whole_model,
)
from ncclean.training.objectives.bayes_objective import Bayes, Decl
from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.cyclip import cross_modal_consistency, in_modal_consistency
from ncclean.training.objectives.disncl_objective import Disncl
from ncclean.training.objectives.gradient_ascent import gradient_ascent_terms
from ncclean.training.objectives.ncu import forget_split
from ncclean.training.objectives.ncu_objective import Ncu, Tokenizer
from ncclean.training.objectives.options import METHODS, Method, NcuOptions, ObjectiveOptions
from ncclean.training.objectives.osa import osa_loss
from ncclean.training.objectives.osa_objective import ReleasedOsa
from ncclean.training.objectives.rince import rince_loss
from ncclean.training.objectives.softclip import softclip_loss


class Clip(PerPairObjective):
    """The CLIP objective: all pairs count as matched."""

    name = "clip"

    def loss(
        self,
        image: torch.Tensor,
        text: torch.Tensor,
        scale: torch.Tensor,
        batch: GlobalBatch,
        rows: slice | None = None,
    ) -> torch.Tensor:
        """See `clip_loss`."""
        return clip_loss(image, text, scale, rows)


class Osa(PerPairObjective):
    """Each pair's loss counts by the weight that the selection gives it."""

    name = "osa"

    def __init__(self, phases: tuple[Phase, ...], normalize: bool) -> None:
        super().__init__(phases)
        self._normalize = normalize

    def loss(
        self,
        image: torch.Tensor,
        text: torch.Tensor,
        scale: torch.Tensor,
        batch: GlobalBatch,
        rows: slice | None = None,
    ) -> torch.Tensor:
        """See `osa_loss`."""
        return osa_loss(image, text, scale, batch.weights, self._normalize, rows)


class GradientAscent(Objective):
    """Minus the CLIP loss of the forget set, the smoothed CLIP loss of the rest."""

    name = "gradient_ascent"

    def __init__(self, phases: tuple[Phase, ...], options: NcuOptions) -> None:
        super().__init__(phases)
        self._options = options

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """`forget` and `retain`."""
        image, text = embeddings["image"], embeddings["text"]
        forget = (
            batch.is_forget
            if self._options.split == "table"
            else forget_split(image, text, scale, self._options.forget_percent)
        )
        forgotten, retained = gradient_ascent_terms(image, text, scale, forget)
        return {"forget": forgotten, "retain": retained}


class SoftClip(Objective):
    """Cross-entropy to targets softened by the similarities within a modality."""

    name = "softclip"

    def __init__(self, phases: tuple[Phase, ...], temperature: float) -> None:
        super().__init__(phases)
        self._temperature = temperature

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """`contrastive`, softened."""
        image, text = embeddings["image"], embeddings["text"]
        return {"contrastive": softclip_loss(image, text, scale, temperature=self._temperature)}


class CyClip(Objective):
    """The CLIP objective with both consistencies, a quarter each."""

    name = "cyclip"

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """`contrastive`, `in_modal` and `cross_modal`."""
        image, text = embeddings["image"], embeddings["text"]
        return {
            "contrastive": clip_loss(image, text, scale),
            "in_modal": 0.25 * in_modal_consistency(image, text),
            "cross_modal": 0.25 * cross_modal_consistency(image, text),
        }


class Rince(Objective):
    """Saturates on pairs that cannot be fitted; at the scale that the model has."""

    name = "rince"

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """`contrastive`."""
        return {"contrastive": rince_loss(embeddings["image"], embeddings["text"], scale)}


def _ncu(options: ObjectiveOptions, tokenizer: Tokenizer | None) -> Objective:
    return Ncu(
        options.ncu,
        learning_rate=options.learning_rate or 5e-5,
        epochs=8 if options.epochs is None else options.epochs,
        prompt_epochs=options.prompt_epochs,
        warmup=options.warmup,
        tokenizer=tokenizer,
    )


def _osa(options: ObjectiveOptions, _: Tokenizer | None) -> Objective:
    if options.ncu.variant == "released":
        return ReleasedOsa(_phases(options))
    return Osa(_phases(options), options.normalize_weights)


def _disncl(options: ObjectiveOptions, _: Tokenizer | None) -> Objective:
    return Disncl(
        options.disncl,
        learning_rate=options.learning_rate or 2e-4,
        epochs=10 if options.epochs is None else options.epochs,
        warmup=options.warmup,
    )


def _phases(options: ObjectiveOptions, *, train_scale: bool = True) -> tuple[Phase, ...]:
    """One phase over the whole model."""
    return whole_model(
        options.learning_rate or 1e-5, options.epochs or 5, options.warmup, train_scale=train_scale
    )


_FACTORIES: dict[Method, Callable[[ObjectiveOptions, Tokenizer | None], Objective]] = {
    "clip": lambda options, _: Clip(_phases(options)),
    "osa": _osa,
    "ncu": _ncu,
    "bayes": lambda options, _: Bayes(_phases(options), options.bayes),
    "disncl": _disncl,
    "gradient_ascent": lambda options, _: GradientAscent(_phases(options), options.ncu),
    "softclip": lambda options, _: SoftClip(_phases(options), options.softclip_temperature),
    "cyclip": lambda options, _: CyClip(_phases(options)),
    "rince": lambda options, _: Rince(_phases(options, train_scale=False)),
    "decl": lambda options, _: Decl(_phases(options), options.bayes.moving_average),
}


def make_objective(
    name: str, options: ObjectiveOptions | None = None, tokenizer: Tokenizer | None = None
) -> Objective:
    """The objective of that name. Raises `InputError` for an unknown one."""
    if name not in METHODS:
        raise InputError(f"--method takes {', '.join(METHODS)}, got {name!r}")
    return _FACTORIES[cast(Method, name)](options or ObjectiveOptions(), tokenizer)
