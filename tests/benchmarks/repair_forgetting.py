"""Forms of forgetting that ncclean does not have: what the search for one that pays has tried.

NCU takes its forget set and its targets from the model as it trains, and a pair is forgotten or
it is not. Here both may come from a slowly averaged copy of the model (the teacher), a pair may be
forgotten in part, and forgetting may do without the negative text.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ncclean.models.text_tower import encode_text
from ncclean.scoring.ncu import clean_confidence
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Phase, Terms, whole_model
from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.ncu import separation_loss
from ncclean.training.objectives.ncu_objective import HARDEST_NEGATIVE, Ncu
from ncclean.training.objectives.ncu_targets import realignment_logits, realignment_loss
from ncclean.training.objectives.options import NcuOptions
from ncclean.training.objectives.similarity import cosines, normalized
from ncclean.training.transport import masked_sinkhorn


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """How an arm of the search forgets.

    `teacher` is the share of the teacher that each step keeps; without one the model teaches
    itself. `share` is how much of a pair is forgotten: all or nothing by NCU's split or the marks
    of a selection (`set`), one less its confidence in the batch (`confidence`), or its weight
    (`weight`: a selection's column). `left out` is the control: what would be forgotten has no
    part in the CLIP loss of the rest. With `negative` false a forgotten pair is only matched anew
    with the other captions; no prompt is trained then, and all steps go to unlearning.
    """

    teacher: float | None = None
    share: Literal["set", "confidence", "weight", "left out"] = "set"
    negative: bool = True


class SearchedNcu(Ncu):
    """NCU with another teacher, forget sets in part, or without negative texts."""

    name = "searched"

    def __init__(self, forgetting: Forgetting, options: NcuOptions, learning_rate: float) -> None:
        super().__init__(options, learning_rate=learning_rate)
        self._forgetting = forgetting
        self._teacher: nn.Module | None = None
        if not forgetting.negative:
            self.phases = whole_model(learning_rate, 1)

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """As NCU's; the teacher is a copy of the model at the start, and does not train."""
        if self._forgetting.teacher is not None:
            self._teacher = copy.deepcopy(model).eval().requires_grad_(False)
        return super().modules(model) if self._forgetting.negative else {}

    def encode(
        self, model: nn.Module, pixels: torch.Tensor, tokens: torch.Tensor, phase: Phase
    ) -> Embeddings:
        """NCU's embeddings, with those of the teacher."""
        if self._forgetting.negative:
            embeddings = super().encode(model, pixels, tokens, phase)
        else:
            embeddings = _encoded(model, pixels, tokens)
        if self._teacher is None:
            taught = {name: value.detach() for name, value in embeddings.items()}
        else:
            self._follow(model)
            with torch.no_grad():
                taught = _encoded(self._teacher, pixels, tokens)
        return {**embeddings, "taught_image": taught["image"], "taught_text": taught["text"]}

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """NCU's, with the split and the targets of the teacher."""
        if phase.name == HARDEST_NEGATIVE:
            return super().terms(embeddings, scale, batch, phase)
        image, text = embeddings["image"], embeddings["text"]
        taught = cosines(embeddings["taught_image"], embeddings["taught_text"])
        forgotten = self._shares(taught, scale, batch)
        if self._forgetting.share == "left out":
            kept = forgotten == 0
            return {"contrastive": clip_loss(image[kept], text[kept], scale)}
        negative = embeddings.get("negative")
        own = None
        if negative is not None:
            own = (embeddings["taught_image"] * negative.detach()).sum(dim=1)
        v2t, t2v = shared_targets(taught, own, forgotten, self.options.gamma)
        logits = realignment_logits(image, text, negative, scale)
        terms = {"realignment": realignment_loss(logits, v2t, t2v)}
        if negative is not None:
            terms["separation"] = separation_loss(
                text, negative, self.options.alpha, self.options.beta
            )
        return terms

    def _shares(
        self, taught: torch.Tensor, scale: torch.Tensor, batch: GlobalBatch
    ) -> torch.Tensor:
        """(N,) how much of each pair is forgotten."""
        if self._forgetting.share == "weight":
            return batch.weights.to(taught)
        confidence = clean_confidence(taught, scale.detach())
        if self._forgetting.share == "confidence":
            return 1 - confidence
        if self.options.split == "table":
            return batch.is_forget.to(taught)
        count = int(len(taught) * self.options.forget_percent / 100)
        forgotten = torch.zeros_like(confidence)
        forgotten[confidence.argsort(stable=True)[:count]] = 1
        return forgotten

    @torch.no_grad()
    def _follow(self, model: nn.Module) -> None:
        """Move the teacher towards the model."""
        assert self._teacher is not None
        assert self._forgetting.teacher is not None
        for slow, fast in zip(self._teacher.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast.to(slow.dtype), 1 - self._forgetting.teacher)


@torch.no_grad()
def shared_targets(
    cosine: torch.Tensor, own_negative: torch.Tensor | None, forgotten: torch.Tensor, gamma: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, N) cosines, (N,) with the own negatives, (N,) shares -> v2t (N, C), t2v (C, N).

    A pair of which p is forgotten keeps 1 - p of the identity; p goes to its negative, column
    N + 1, if there is one. Transport shares out what is left of each image among the captions, the
    own one of a pair that is mostly forgotten excepted. Mixed as in NCU's Eq. 10.
    """
    n = len(cosine)
    kept = 1 - forgotten if own_negative is not None else torch.ones_like(forgotten)
    rows = (kept / kept.sum()).clamp_min(1e-6)
    rows = rows / rows.sum()
    allowed = ~torch.diag(forgotten > 0.5)
    cost = (1 - cosine) / (1 - cosine).max()
    plan = masked_sinkhorn(cost, allowed, rows, rows.new_full((n,), 1 / n))
    plan = plan * kept.mean() * n
    identity = torch.diag(1 - forgotten)
    if own_negative is not None:
        plan = torch.cat([plan, forgotten.unsqueeze(1)], dim=1)
        identity = torch.cat([identity, forgotten.unsqueeze(1)], dim=1)
    return _mixed(plan, identity, gamma), _mixed(plan.T, identity.T, gamma)


def _mixed(plan: torch.Tensor, identity: torch.Tensor, gamma: float) -> torch.Tensor:
    return _to_one(gamma * _to_one(plan) + (1 - gamma) * _to_one(identity))


def _to_one(values: torch.Tensor) -> torch.Tensor:
    mass = values.sum(dim=1, keepdim=True)
    return values / torch.where(mass > 0, mass, 1.0)


def _encoded(model: nn.Module, pixels: torch.Tensor, tokens: torch.Tensor) -> Embeddings:
    image = model.encode_image(pixels)  # type: ignore[operator]
    return {
        "image": normalized(image),
        "text": normalized(encode_text(model, tokens, normalize=False)),
    }
