"""NCU as the trainer sees it: two phases, and a negative text beside image and caption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ncclean.errors import InputError
from ncclean.models.text_tower import encode_text
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Objective, Phase, Terms
from ncclean.training.objectives.ncu import (
    NcuOptions,
    forget_split,
    hardest_negative_terms,
    unlearning_terms,
)
from ncclean.training.objectives.ncu_prompt import NegativePrefixes, NegativePrompt
from ncclean.training.objectives.similarity import normalized

HARDEST_NEGATIVE, UNLEARNING = "HN", "UL"
# The paper's rates: prompt 3e-4 and text tower 1e-4 in phase HN where both towers have 5e-5 in UL.
_PROMPT_RATE, _TEXT_RATE = 6.0, 2.0
# Of the released code: in phase UL blocks 0 to 4 of the text tower do not train.
_RELEASED_WARMUP_STEPS, _RELEASED_FROZEN_BLOCKS = 100, 5

Tokenizer = Callable[[list[str]], torch.Tensor]


def start_tokens(tokenizer: Tokenizer) -> int:
    """Number of tokens that a tokenizer puts before a caption: 1 for CLIP's, 0 for SigLIP's."""
    first, second = tokenizer(["one cat", "two dogs"])[:, 0].tolist()
    return int(first == second)


class Ncu(Objective):
    """Phase HN learns the negative text with the image tower frozen; phase UL unlearns with it."""

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

        Raises `ModelError` for a text tower that takes no prompt.
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
        """L2-normalised `image`, `text` and, with a negative prompt, `negative` embeddings."""
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
        """NCU's loss terms: Eq. 6 in phase HN, Eq. 12 in phase UL."""
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
