"""Forms of forgetting that ncclean does not have: what the search for one that pays has tried.

NCU without negative texts (`negative="none"`) takes its forget set and its targets from the model
as it trains, and a pair is forgotten or it is not. Here both may come from a slowly averaged copy
of the model, a pair may be forgotten in part, or be left out instead.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ncclean.scoring.ncu import clean_confidence
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Phase, Terms
from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.ncu import Ncu, forget_split
from ncclean.training.objectives.ncu_targets import realigned, realignment_logits, realignment_loss
from ncclean.training.objectives.options import NcuOptions
from ncclean.training.objectives.similarity import cosines


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """How an arm of the search forgets.

    `teacher` is the share of the teacher that each step keeps; without one the model teaches
    itself. What would be forgotten may be `rematched` as NCU does; be rematched `in part`, a pair
    by one less its confidence in the batch; or, as a control, be `left out` of the CLIP loss.
    """

    teacher: float | None = None
    how: Literal["rematched", "in part", "left out"] = "rematched"


class SearchedNcu(Ncu):
    """NCU without negative texts, with another teacher or another way to forget."""

    name = "searched"

    def __init__(self, forgetting: Forgetting, options: NcuOptions, learning_rate: float) -> None:
        super().__init__(options, learning_rate=learning_rate)
        self._forgetting = forgetting
        self._teacher: nn.Module | None = None

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """None; the teacher is a copy of the model at the start, and does not train."""
        if self._forgetting.teacher is not None:
            self._teacher = copy.deepcopy(model).eval().requires_grad_(False)
        return super().modules(model)

    def encode(
        self, model: nn.Module, pixels: torch.Tensor, tokens: torch.Tensor, phase: Phase
    ) -> Embeddings:
        """NCU's embeddings, with those of the teacher."""
        embeddings = super().encode(model, pixels, tokens, phase)
        taught = {name: value.detach() for name, value in embeddings.items()}
        if self._teacher is not None:
            self._follow(model)
            with torch.no_grad():
                taught = super().encode(self._teacher, pixels, tokens, phase)
        return {**embeddings, "taught_image": taught["image"], "taught_text": taught["text"]}

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """NCU's `realignment` by the teacher's split and targets; `contrastive` for the control."""
        image, text = embeddings["image"], embeddings["text"]
        taught = embeddings["taught_image"], embeddings["taught_text"]
        scale_of_split = scale.detach()
        forget = forget_split(*taught, scale_of_split, self.options.forget_percent)
        if self._forgetting.how == "left out":
            return {"contrastive": clip_loss(image[~forget], text[~forget], scale)}
        targets = self._targets(*taught, forget)
        if self._forgetting.how == "in part":
            confidence = clean_confidence(cosines(*taught), scale_of_split)[:, None]
            whole = self._targets(*taught, torch.zeros_like(forget))
            gone = self._targets(*taught, torch.ones_like(forget))
            targets = tuple(
                confidence * kept + (1 - confidence) * moved
                for kept, moved in zip(whole, gone, strict=True)
            )
        logits = realignment_logits(image, text, None, scale)
        return {"realignment": realignment_loss(logits, *targets)}

    def _targets(
        self, image: torch.Tensor, text: torch.Tensor, forget: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return realigned(image, text, None, forget, gamma=self.options.gamma).both()

    @torch.no_grad()
    def _follow(self, model: nn.Module) -> None:
        """Move the teacher towards the model."""
        assert self._teacher is not None
        assert self._forgetting.teacher is not None
        for slow, fast in zip(self._teacher.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast.to(slow.dtype), 1 - self._forgetting.teacher)
