"""NCU: unlearn noisy correspondence with the help of negated captions.

"Unlearning the Noisy Correspondence Makes CLIP More Robust". Phase HN learns, for every caption, a
negative text that says it does not hold (`ncu_prompt`); phase UL moves the images of mismatched
pairs towards that text, and those of matched pairs towards all captions that fit (`ncu_targets`).
This module has the losses of both phases. Embeddings are those of the global batch, (N, d),
L2-normalised.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from ncclean.errors import InputError
from ncclean.models.text_tower import encode_text
from ncclean.scoring.ncu import forget_mask, partner_confidence
from ncclean.training.objectives.base import (
    Embeddings,
    GlobalBatch,
    Objective,
    Phase,
    Terms,
    Tokenizer,
)
from ncclean.training.objectives.ncu_prompt import NegativePrefixes, NegativePrompt
from ncclean.training.objectives.ncu_targets import realigned, realignment
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions, Variant
from ncclean.training.objectives.similarity import (
    both_ways,
    by_rows,
    mean_or_zero,
    normalized,
    own_and_all,
    paired_cosines,
    precise,
    row_cosines,
)

HARDEST_NEGATIVE, UNLEARNING = "HN", "UL"
# The paper's rates: prompt 3e-4 and text tower 1e-4 in phase HN; both towers 5e-5 in UL.
_PROMPT_RATE, _TEXT_RATE = 6.0, 2.0
# As in the released code: in phase UL blocks 0 to 4 of the text tower do not train.
_RELEASED_WARMUP_STEPS, _RELEASED_FROZEN_BLOCKS = 100, 5


def start_tokens(tokenizer: Tokenizer) -> int:
    """Return how many tokens a tokenizer puts before a caption: 1 for CLIP's, 0 for SigLIP's."""
    first, second = tokenizer(["one cat", "two dogs"])[:, 0].tolist()
    return int(first == second)


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create NCU's objective."""
    return Ncu(
        options.ncu,
        learning_rate=options.learning_rate or 5e-5,
        epochs=8 if options.epochs is None else options.epochs,
        prompt_epochs=options.prompt_epochs,
        warmup=options.warmup,
        tokenizer=tokenizer,
    )


class Ncu(Objective):
    """NCU's objective: phase HN learns a negative text, phase UL unlearns the forget set with it.

    In phase HN, the image tower is frozen.
    """

    name = "ncu"

    def __init__(
        self,
        options: NcuOptions,
        *,
        learning_rate: float = 5e-5,
        epochs: int = 8,
        prompt_epochs: int = 2,
        warmup: float = 0.1,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """`epochs` are those of phase UL; `tokenizer` is needed for `negative="prefixes"`."""
        self.options = options
        self._tokenizer = tokenizer
        self._negative: NegativePrompt | NegativePrefixes | None = None
        rates = {"text": _TEXT_RATE * learning_rate}
        if options.negative == "prompt":
            rates["prompt"] = _PROMPT_RATE * learning_rate
        both = dict.fromkeys(("image", "text", "scale"), learning_rate)
        first = 0 if options.negative == "none" else prompt_epochs
        schedule: dict[str, Any] = {"warmup": warmup}
        frozen = 0
        if options.variant == "released":
            schedule = {"warmup_steps": _RELEASED_WARMUP_STEPS, "schedule": "run"}
            frozen = _RELEASED_FROZEN_BLOCKS
            rates["scale"] = _TEXT_RATE * learning_rate
        phases = (
            Phase(name=HARDEST_NEGATIVE, epochs=first, learning_rates=rates, **schedule),
            Phase(
                name=UNLEARNING,
                epochs=epochs,
                learning_rates=both,
                frozen_text_blocks=frozen,
                **schedule,
            ),
        )
        super().__init__(tuple(phase for phase in phases if phase.epochs))

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """NCU's negative prompt, if one is trained.

        Raises `ModelError` for a text tower that accepts no prompt.
        """
        if self.options.negative == "none":
            return {}
        if self.options.negative == "prefixes":
            if self._tokenizer is None:
                raise InputError("textual prefixes need the tokenizer of the model")
            start = start_tokens(self._tokenizer)
            self._negative = NegativePrefixes.for_model(model, self._tokenizer, start=start)
            return {}
        start = 1 if self._tokenizer is None else start_tokens(self._tokenizer)
        self._negative = NegativePrompt.for_model(model, self.options.prompt_length, start)
        return {"prompt": self._negative}

    def encode(
        self, model: nn.Module, pixels: torch.Tensor, tokens: torch.Tensor, phase: Phase
    ) -> Embeddings:
        """Return L2-normalised `image`, `text` and, with a prompt, `negative` embeddings."""
        image = model.encode_image(pixels)  # type: ignore[operator]
        embeddings = {
            "image": normalized(image),
            "text": normalized(encode_text(model, tokens, normalize=False)),
        }
        if self.options.negative != "none":
            assert self._negative is not None, "modules() comes first"
            embeddings["negative"] = self._negative(model, tokens)
        return embeddings

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """Return NCU's loss terms: Eq. 6 in phase HN, Eq. 12 in phase UL."""
        image, text, negative = embeddings["image"], embeddings["text"], embeddings.get("negative")
        if self.options.split == "table":
            forget = batch.is_forget
        else:
            percent, variant = self.options.forget_percent, self.options.variant
            forget = forget_split(image, text, scale, percent, variant)
        if phase.name == UNLEARNING:
            return unlearning_terms(image, text, negative, scale, forget, self.options)
        assert negative is not None, "without negative texts there is no phase that learns them"
        return hardest_negative_terms(image, text, negative, scale, forget, self.options)


@torch.no_grad()
def forget_split(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    percent: float,
    variant: Variant = "published",
) -> torch.Tensor:
    """Return NCU's forget set (Eq. 2): (N,) bool, the least confident percent of the batch.

    In the `released` variant only images count: the confidence is the softmax over captions.
    """
    (paired, image_to_text), (_, text_to_image) = own_and_all(image, text, scale)
    if variant == "released":
        return forget_mask((paired - image_to_text).exp(), percent)
    return forget_mask(partner_confidence(paired, image_to_text, text_to_image), percent)


def hardest_negative_terms(
    image: torch.Tensor,
    text: torch.Tensor,
    negative: torch.Tensor,
    scale: torch.Tensor | float,
    forget: torch.Tensor,
    options: NcuOptions,
) -> Terms:
    """Return NCU's loss of phase HN (Eq. 6) on retained pairs, as three terms.

    These are `separation`, `relation` and `matching`.
    """
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
    """Return NCU's loss of phase UL (Eq. 12): `realignment`, and `separation` if any.

    There is no `separation` without negative texts.
    """
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
    """Return NCU's Eq. 3, mean of [alpha - c]+ + [c - beta]+, which keeps c in [alpha, beta].

    c = <t_i, n_i>, with t_i the embedding of a caption and n_i that of its negative text.
    """
    cosine = paired_cosines(text, negative)
    return mean_or_zero((alpha - cosine).relu() + (cosine - beta).relu())


def relation_loss(
    text: torch.Tensor, negative: torch.Tensor, form: Literal["cross", "intra"] = "cross"
) -> torch.Tensor:
    """Return NCU's Eq. 4: negative texts n relate to one another as their captions t do.

    `cross` is Eq. 4, (<t_i, n_j> - <t_j, n_i>)^2; `intra` is the authors' code, (<t_i, t_j> - <n_i,
    n_j>)^2.
    """
    if form not in ("cross", "intra"):
        raise ValueError(f"form takes cross or intra, got {form!r}")

    def squares(rows: slice) -> torch.Tensor:
        if form == "cross":
            first, second = both_ways(text, negative, rows)
        else:
            first, second = (row_cosines(captions, captions, rows) for captions in (text, negative))
        return (first - second).square().sum()

    return torch.stack(by_rows(squares, len(text))).sum() / max(1, len(text))


def distance_loss(text: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Return the mean of 2 - |t_i - n_i|, smallest if caption and negative text are opposite.

    NCU's Table 5, V2, in place of Eq. 4.
    """
    text, negative = precise(text, negative)
    return mean_or_zero(2 - torch.linalg.vector_norm(text - negative, dim=1))


def matching_loss(
    image: torch.Tensor, text: torch.Tensor, negative: torch.Tensor, scale: torch.Tensor | float
) -> torch.Tensor:
    """Return NCU's Eq. 5, a sigmoid loss: captions match their images, negative texts all others.

    (1/N) sum_ij softplus(-m_ij scale <t_i, v_j>) + softplus(m_ij scale <n_i, v_j>), with m_ij 1 for
    i = j and -1 otherwise. The paper's Eq. 5 lacks the minus sign before its logarithms.
    """

    def losses(rows: slice) -> torch.Tensor:
        matches, opposite = (
            scale * row_cosines(captions, image, rows) for captions in (text, negative)
        )
        sign = torch.full_like(matches, -1)
        sign.diagonal(rows.start or 0).fill_(1)
        return (F.softplus(-sign * matches) + F.softplus(sign * opposite)).sum()

    return torch.stack(by_rows(losses, len(text))).sum() / max(1, len(text))
