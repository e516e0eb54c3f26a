"""NCU and OSA as published but for single differences of the code that their authors released.

`ncclean finetune --variant released` has all of them at once; docs/objectives.md lists them. With
all of `NCU` and none, and with all of `OSA`, the losses are those of ncclean's own variants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import torch
from torch import nn

from ncclean.models.estimator import Estimator
from ncclean.scoring.osa import cleanliness_weight, estimate_shift
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Phase, Terms
from ncclean.training.objectives.ncu import (
    UNLEARNING,
    Ncu,
    forget_split,
    hardest_negative_terms,
    separation_loss,
)
from ncclean.training.objectives.ncu_targets import (
    ReleasedTargets,
    Targets,
    realignment,
    transport_problem,
)
from ncclean.training.objectives.options import NcuOptions, Variant
from ncclean.training.objectives.osa import ReleasedOsa, StartEstimator, osa_loss, released_weights
from ncclean.training.transport import masked_sinkhorn

# Of the losses.
NCU = ("confidence", "relation", "mass", "plans", "half", "stop")
# Of the training: `frozen` is in proportion, one of the two blocks for five of twelve.
NCU_TRAINING = ("cosine", "warm-up", "scale", "frozen")
OSA = ("weight", "threshold")
_WARMUP_STEPS, _FROZEN_BLOCKS = 100, 1
_TOLERANCE = 1e-3  # of the shift, as in `score`


class _OwnPlans(ReleasedTargets):
    """A plan for each side, whose rows are brought to mass 1 as published."""

    _mixed = Targets._mixed


class PartlyReleasedNcu(Ncu):
    """NCU as published, with the `differences` of the released code, of `NCU` or `NCU_TRAINING`."""

    def __init__(
        self, differences: Collection[str], options: NcuOptions, learning_rate: float
    ) -> None:
        if "relation" in differences:
            options = dataclasses.replace(options, relation="intra")
        super().__init__(options, learning_rate=learning_rate)
        self._differences = frozenset(differences)
        self.phases = tuple(self._changed(phase) for phase in self.phases)

    def _changed(self, phase: Phase) -> Phase:
        if "cosine" in self._differences:
            phase = dataclasses.replace(phase, schedule="run")
        if "warm-up" in self._differences:
            phase = dataclasses.replace(phase, warmup_steps=_WARMUP_STEPS)
        if "scale" in self._differences and phase.name != UNLEARNING:
            rates = {**phase.learning_rates, "scale": phase.learning_rates["text"]}
            phase = dataclasses.replace(phase, learning_rates=rates)
        if "frozen" in self._differences and phase.name == UNLEARNING:
            phase = dataclasses.replace(phase, frozen_text_blocks=_FROZEN_BLOCKS)
        return phase

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """NCU's loss terms."""
        image, text, negative = (embeddings[name] for name in ("image", "text", "negative"))
        options = self.options
        variant: Variant = "released" if "confidence" in self._differences else "published"
        forget = forget_split(image, text, scale, options.forget_percent, variant)
        if phase.name != UNLEARNING:
            return hardest_negative_terms(image, text, negative, scale, forget, options)
        targets = self._targets(image, text, negative, forget)
        share = 1.0 if "half" in self._differences else 2.0  # of the released loss
        return {
            "realignment": share * realignment(image, text, negative, scale, targets),
            "separation": separation_loss(text, negative, options.alpha, options.beta),
        }

    @torch.no_grad()
    def _targets(
        self, image: torch.Tensor, text: torch.Tensor, negative: torch.Tensor, forget: torch.Tensor
    ) -> Targets:
        options = self.options
        cost, mask, rows, columns = transport_problem(image, text, negative, forget)
        plan, text_plan = (
            masked_sinkhorn(
                *sides, options.epsilon, options.max_iterations, options.tolerance,
                stop="potentials" if "stop" in self._differences else "mass",
            )
            for sides in ((cost, mask, rows, columns), (cost.T, mask.T, columns, rows))
        )  # fmt: skip
        kind = ReleasedTargets if "mass" in self._differences else _OwnPlans
        own = text_plan if "plans" in self._differences else plan.T
        return kind(plan, forget, options.gamma, text_plan=own)


class PartlyReleasedOsa(ReleasedOsa):
    """OSA with weights by its start as published, with the `differences` of the released code."""

    def __init__(
        self, differences: Collection[str], phases: tuple[Phase, ...], estimator: Estimator
    ) -> None:
        super().__init__(phases)
        self._differences, self._estimator = frozenset(differences), estimator

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """The frozen copy of the start, with the threshold of `score --shift noise`."""
        modules = super().modules(model)
        if "threshold" not in self._differences:
            start = modules["start"]
            assert isinstance(start, StartEstimator)
            shift = estimate_shift(self._estimator, tolerance=_TOLERANCE)
            start.threshold.copy_(start._scale.detach() * shift)
        return modules

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """OSA's loss as the term `contrastive`."""
        assert self._start is not None, "modules() comes first"
        above = embeddings["logits"].detach()[:, 0].float()
        if "weight" in self._differences:
            weights = released_weights(above, 0.0)
        else:
            weights = cleanliness_weight(above / self._start._scale.detach(), 0.0)
        return {"contrastive": osa_loss(embeddings["image"], embeddings["text"], scale, weights)}
