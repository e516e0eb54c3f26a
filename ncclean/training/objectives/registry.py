"""The objectives by name, as the trainer takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor

from ncclean.errors import InputError
from ncclean.training.objectives.base import (
    GlobalBatch,
    LossObjective,
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
from ncclean.training.objectives.options import METHODS, Method, ObjectiveOptions
from ncclean.training.objectives.osa import osa_loss
from ncclean.training.objectives.osa_objective import ReleasedOsa
from ncclean.training.objectives.rince import rince_loss
from ncclean.training.objectives.softclip import softclip_loss


class Clip(PerPairObjective):
    """The CLIP objective: all pairs count as matched."""

    name = "clip"

    def loss(
        self,
        image: Tensor,
        text: Tensor,
        scale: Tensor,
        batch: GlobalBatch,
        rows: slice | None = None,
    ) -> Tensor:
        """The CLIP loss of the batch, or of the pairs `rows`."""
        return clip_loss(image, text, scale, rows)


class Osa(PerPairObjective):
    """Each pair's loss counts by the weight that the selection gives it."""

    name = "osa"

    def __init__(self, phases: tuple[Phase, ...], normalize: bool) -> None:
        super().__init__(phases)
        self._normalize = normalize

    def loss(
        self,
        image: Tensor,
        text: Tensor,
        scale: Tensor,
        batch: GlobalBatch,
        rows: slice | None = None,
    ) -> Tensor:
        """The CLIP loss with each pair weighted as the selection says."""
        return osa_loss(image, text, scale, batch.weights, self._normalize, rows)


def cyclip_terms(image: Tensor, text: Tensor, scale: Tensor, _: GlobalBatch) -> Terms:
    """CyCLIP's loss terms: the CLIP loss, and both consistencies, a quarter each."""
    return {
        "contrastive": clip_loss(image, text, scale),
        "in_modal": 0.25 * in_modal_consistency(image, text),
        "cross_modal": 0.25 * cross_modal_consistency(image, text),
    }


def _gradient_ascent(options: ObjectiveOptions, _: Tokenizer | None) -> Objective:
    """Minus the CLIP loss of the forget set, the smoothed CLIP loss of the rest."""
    ncu = options.ncu

    def terms(image: Tensor, text: Tensor, scale: Tensor, batch: GlobalBatch) -> Terms:
        forget = batch.is_forget
        if ncu.split != "table":
            forget = forget_split(image, text, scale, ncu.forget_percent)
        forgotten, retained = gradient_ascent_terms(image, text, scale, forget)
        return {"forget": forgotten, "retain": retained}

    return LossObjective("gradient_ascent", _phases(options), terms)


def _softclip(options: ObjectiveOptions, _: Tokenizer | None) -> Objective:
    """Cross-entropy to targets softened by the similarities within a modality."""

    def terms(image: Tensor, text: Tensor, scale: Tensor, _: GlobalBatch) -> Terms:
        temperature = options.softclip_temperature
        return {"contrastive": softclip_loss(image, text, scale, temperature=temperature)}

    return LossObjective("softclip", _phases(options), terms)


def _rince(options: ObjectiveOptions, _: Tokenizer | None) -> Objective:
    """Saturates on pairs that cannot be fitted; at the scale that the model has."""

    def terms(image: Tensor, text: Tensor, scale: Tensor, _: GlobalBatch) -> Terms:
        return {"contrastive": rince_loss(image, text, scale)}

    return LossObjective("rince", _phases(options, train_scale=False), terms)


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
    "gradient_ascent": _gradient_ascent,
    "softclip": _softclip,
    "cyclip": lambda options, _: LossObjective("cyclip", _phases(options), cyclip_terms),
    "rince": _rince,
    "decl": lambda options, _: Decl(_phases(options), options.bayes.moving_average),
}


def make_objective(
    name: str, options: ObjectiveOptions | None = None, tokenizer: Tokenizer | None = None
) -> Objective:
    """Create a training objective by name. Raises `InputError` for an unknown one."""
    if name not in METHODS:
        raise InputError(f"--method takes {', '.join(METHODS)}, got {name!r}")
    return _FACTORIES[cast(Method, name)](options or ObjectiveOptions(), tokenizer)
