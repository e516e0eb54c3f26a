"""The Bayesian objective and DeCL as the trainer sees them: seeded draws, and a memory of u."""

from __future__ import annotations

import torch
from torch import nn

from ncclean.errors import InputError
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Objective, Phase, Terms
from ncclean.training.objectives.bayes import (
    gibbs_sample,
    normalized_weights,
    weighted_contrastive_loss,
)
from ncclean.training.objectives.decl import draw_log_u, loss_of_sums
from ncclean.training.objectives.options import BayesOptions
from ncclean.training.objectives.pair_memory import PairMemory
from ncclean.training.objectives.row_blocks import both_ways, by_rows, own_and_all

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Rows of negatives that are plenty for quantiles, which torch takes of 2^24 values at most.
_OBSERVED = 64


class Bayes(Objective):
    """Draws new weights in every step, independently for both directions."""

    name = "bayes"

    def __init__(self, phases: tuple[Phase, ...], options: BayesOptions) -> None:
        super().__init__(phases)
        self.options = options
        self._memory = PairMemory(2) if options.moving_average is not None else None
        self._last: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None = None

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """The memory of each pair's auxiliary variable u, if a moving average is asked for."""
        return {} if self._memory is None else {"pair_memory": self._memory}

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """Loss terms `image_to_text` and `text_to_image`: half of each weighted loss."""
        image, text = embeddings["image"], embeddings["text"]
        remembered = _recalled(self._memory, batch)
        blocks = by_rows(
            lambda rows: self._weighed(image, text, scale, batch.seed, remembered, rows), len(image)
        )
        losses, log_u, positive, some = zip(*blocks, strict=True)
        if self._memory is not None and batch.keys is not None:
            self._memory.remember(batch.keys, torch.cat(log_u))
        self._last = torch.cat(positive), torch.cat(some), batch.is_noisy
        image_to_text, text_to_image = torch.stack(losses).sum(dim=0)
        return {"image_to_text": image_to_text / 2, "text_to_image": text_to_image / 2}

    def _weighed(
        self,
        image: torch.Tensor,
        text: torch.Tensor,
        scale: torch.Tensor,
        seed: int,
        remembered: torch.Tensor | None,
        rows: slice,
    ) -> tuple[torch.Tensor, ...]:
        """Weigh some rows: their share of both losses, (2,), log u, (R, 2), and the logged terms.

        That is of the image-to-text weights, of mean 1 in each row, the (R,) positives and the
        negatives of the rows below `_OBSERVED`.
        """
        first = rows.start or 0
        # Of the block, so that it draws the same when it is computed once more.
        generator = torch.Generator(image.device).manual_seed(seed + first)
        with torch.no_grad():
            factor = scale if self.options.mode == "strict" else 1.0
            drawn_from = list(both_ways(image, text, rows, factor))
        log_w, log_u, losses = [], [], []
        for column, log_s in enumerate(drawn_from):
            before = None if remembered is None else remembered[rows, column]
            weights, auxiliary = gibbs_sample(log_s, self.options, generator, before, first)
            log_w.append(weights)
            log_u.append(auxiliary)
        for logits, weights in zip(both_ways(image, text, rows, scale), log_w, strict=True):
            share = len(logits) / len(image)
            losses.append(share * weighted_contrastive_loss(logits, weights, first))
        observed = normalized_weights(log_w[0])
        some = observed[: max(0, _OBSERVED - first)]
        is_other = torch.ones_like(some, dtype=torch.bool)
        is_other.diagonal(first).fill_(False)
        positive = observed.diagonal(first).clone()  # a view would keep the matrix
        return torch.stack(losses), torch.stack(log_u, dim=1), positive, some[is_other]

    def statistics(self) -> dict[str, float]:
        """Quantiles of the weights drawn in the last step, image to text, mean 1 per row (Fig. 3).

        `w_pos/clean_correlation` is that of log w_pos with being clean, where the truth is known.
        Expect it to be negative: a dissimilar positive gets a larger weight.
        """
        if self._last is None:
            return {}
        positive, negative, is_noisy = self._last
        statistics = {"w_pos/mean": float(positive.mean())}
        for name, values in (("w_pos", positive), ("w_neg", negative)):
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


class Decl(Objective):
    """DeCL with a u per pair and direction, averaged over the steps that show it."""

    name = "decl"

    def __init__(self, phases: tuple[Phase, ...], moving_average: float | None = None) -> None:
        super().__init__(phases)
        self._share = 0.5 if moving_average is None else moving_average
        self._memory = PairMemory(2)

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """The memory of each pair's auxiliary variable u."""
        return {"pair_memory": self._memory}

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """Loss terms `image_to_text` and `text_to_image`: half of DeCL's loss in each direction."""
        directions = own_and_all(embeddings["image"], embeddings["text"], scale)
        generator = torch.Generator(directions.device).manual_seed(batch.seed)
        remembered = _recalled(self._memory, batch)
        log_u = [
            draw_log_u(
                log_sum.detach().float(),
                None if remembered is None else remembered[:, column],
                self._share,
                generator,
            )
            for column, (_, log_sum) in enumerate(directions)
        ]
        if batch.keys is not None:
            self._memory.remember(batch.keys, torch.stack(log_u, dim=1))
        image_to_text, text_to_image = (
            loss_of_sums(own, log_sum, drawn) / 2
            for (own, log_sum), drawn in zip(directions, log_u, strict=True)
        )
        return {"image_to_text": image_to_text, "text_to_image": text_to_image}


def _recalled(memory: PairMemory | None, batch: GlobalBatch) -> torch.Tensor | None:
    """(N, 2) log u of both directions, or None without a memory."""
    if memory is None:
        return None
    if batch.keys is None:
        raise InputError("a moving average of u needs the uids of the pairs")
    return memory.recall(batch.keys)
