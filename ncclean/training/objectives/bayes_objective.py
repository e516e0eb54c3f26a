"""The Bayesian objective and DeCL as the trainer sees them: seeded draws, and a memory of u."""

from __future__ import annotations

import torch
from torch import nn

from ncclean.errors import InputError
from ncclean.training.objectives.base import Embeddings, GlobalBatch, PairObjective, Phase, Terms
from ncclean.training.objectives.bayes import (
    gibbs_sample,
    normalized_weights,
    weighted_contrastive_loss,
)
from ncclean.training.objectives.decl import decl_loss, sample_log_u
from ncclean.training.objectives.options import BayesOptions
from ncclean.training.objectives.pair_memory import PairMemory
from ncclean.training.objectives.similarity import cosines

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Bayes(PairObjective):
    """Draws new weights in every step, independently for both directions."""

    name = "bayes"

    def __init__(self, phases: tuple[Phase, ...], options: BayesOptions) -> None:
        super().__init__(phases)
        self.options = options
        self._memory = PairMemory(2) if options.moving_average is not None else None
        self._last: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """The memory of u, if there is one."""
        return {} if self._memory is None else {"pair_memory": self._memory}

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """`image_to_text` and `text_to_image`, each half of its weighted loss."""
        similarity = cosines(embeddings["image"], embeddings["text"])
        logits = scale * similarity
        drawn_from = (logits if self.options.mode == "strict" else similarity).detach()
        generator = torch.Generator(logits.device).manual_seed(batch.seed)
        remembered = _recalled(self._memory, batch)
        log_w, log_u = [], []
        for column, log_s in enumerate((drawn_from, drawn_from.T)):
            before = None if remembered is None else remembered[:, column]
            weights, auxiliary = gibbs_sample(log_s, self.options, generator, before)
            log_w.append(weights)
            log_u.append(auxiliary)
        if self._memory is not None and batch.keys is not None:
            self._memory.remember(batch.keys, torch.stack(log_u, dim=1))
        self._last = log_w[0], batch.is_noisy
        return {
            "image_to_text": weighted_contrastive_loss(logits, log_w[0]) / 2,
            "text_to_image": weighted_contrastive_loss(logits.T, log_w[1]) / 2,
        }

    def statistics(self) -> dict[str, float]:
        """Quantiles of the image-to-text weights of mean 1 per row (Fig. 3).

        `w_pos/clean_correlation` is that of log w_pos with being clean, where the truth is known.
        Expect it to be negative: a dissimilar positive gets a larger weight.
        """
        if self._last is None:
            return {}
        log_w, is_noisy = self._last
        weights = normalized_weights(log_w)
        positive = weights.diagonal()
        off = ~torch.eye(len(weights), dtype=torch.bool, device=weights.device)
        statistics = {"w_pos/mean": float(positive.mean())}
        # A row of negatives in 64 is plenty for quantiles, which torch takes of 2^24 at most.
        some = weights[:64][off[:64]]
        for name, values in (("w_pos", positive), ("w_neg", some)):
            levels = torch.tensor(_QUANTILES, device=values.device)
            for level, value in zip(_QUANTILES, values.quantile(levels).tolist(), strict=True):
                statistics[f"{name}/q{100 * level:02.0f}"] = value
        if is_noisy is not None:
            has_truth = is_noisy >= 0
            clean = (is_noisy[has_truth] == 0).float()
            if 0 < float(clean.sum()) < len(clean):
                pair = torch.stack([positive[has_truth].log(), clean])
                statistics["w_pos/clean_correlation"] = float(torch.corrcoef(pair)[0, 1])
        return statistics


class Decl(PairObjective):
    """DeCL with a u per pair and direction, averaged over the steps that show it."""

    name = "decl"

    def __init__(self, phases: tuple[Phase, ...], moving_average: float | None = None) -> None:
        super().__init__(phases)
        self._share = 0.5 if moving_average is None else moving_average
        self._memory = PairMemory(2)

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """The memory of u."""
        return {"pair_memory": self._memory}

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """`image_to_text` and `text_to_image`, each half of its loss."""
        logits = scale * cosines(embeddings["image"], embeddings["text"])
        generator = torch.Generator(logits.device).manual_seed(batch.seed)
        remembered = _recalled(self._memory, batch)
        log_u = [
            sample_log_u(
                direction.detach(),
                None if remembered is None else remembered[:, column],
                self._share,
                generator,
            )
            for column, direction in enumerate((logits, logits.T))
        ]
        if batch.keys is not None:
            self._memory.remember(batch.keys, torch.stack(log_u, dim=1))
        return {
            "image_to_text": decl_loss(logits, log_u[0]) / 2,
            "text_to_image": decl_loss(logits.T, log_u[1]) / 2,
        }


def _recalled(memory: PairMemory | None, batch: GlobalBatch) -> torch.Tensor | None:
    """(N, 2) log u of both directions, or None without a memory."""
    if memory is None:
        return None
    if batch.keys is None:
        raise InputError("a moving average of u needs the uids of the pairs")
    return memory.recall(batch.keys)
