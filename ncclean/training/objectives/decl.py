"""DeCL: the contrastive loss as a sum over pairs, with a random variable replacing log-sum-exp.

Chen et al. 2022, "Why do we need large batchsizes in contrastive learning? A gradient-bias
perspective": 1 / x = int_0^inf e^(-u x) du, so u_i ~ Gamma(1, rate sum_j s_ij) makes the loss
-log s_ii + u_i sum_j s_ij, whose gradient with the u_i of larger samples has less bias.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from ncclean.training.objectives.base import (
    Embeddings,
    GlobalBatch,
    Objective,
    Phase,
    Terms,
    Tokenizer,
    method_phases,
)
from ncclean.training.objectives.bayes import PairMemory, averaged, recalled, sample_log_gamma
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.similarity import own_and_all

# A draw has u_i sum_j s_ij ~ Exponential(1), so 50 exceeds any draw. A remembered u may be much too
# large once the similarities have grown: without a bound, one such pair dominates the gradient.
_LARGEST = math.log(50.0)


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create DeCL's objective."""
    return Decl(method_phases(options), options.bayes.moving_average)


class Decl(Objective):
    """DeCL's objective, with a u for each pair and direction, averaged over the pair's steps."""

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
        """Return the loss terms `image_to_text` and `text_to_image`: half of DeCL's loss each."""
        directions = own_and_all(embeddings["image"], embeddings["text"], scale)
        generator = torch.Generator(directions.device).manual_seed(batch.seed)
        remembered = recalled(self._memory, batch)
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
            loss_of_sums(paired, log_sum, drawn) / 2
            for (paired, log_sum), drawn in zip(directions, log_u, strict=True)
        )
        return {"image_to_text": image_to_text, "text_to_image": text_to_image}


def loss_of_sums(paired: torch.Tensor, log_sum: torch.Tensor, log_u: torch.Tensor) -> torch.Tensor:
    """Return DeCL's loss, the mean of -log s_ii + u_i sum_j s_ij, a scalar.

    Takes the (N,) logits log s_ii of the pairs, (N,) logsumexps of the logits' rows and (N,) log u.
    """
    return (-paired + (log_u.to(log_sum.dtype) + log_sum).exp()).mean()


@torch.no_grad()
def draw_log_u(
    log_sum: torch.Tensor,
    remembered: torch.Tensor | None = None,
    moving_average: float = 0.5,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw (N,) log u, u ~ Gamma(1, rate sum_j s_ij), for N pairs.

    `log_sum` (N,) are float32 logsumexps of the rows of logits log s_ij. `remembered` (N,) log u of
    earlier steps (NaN if none) keep the share `moving_average`.
    """
    log_u = sample_log_gamma(1.0, log_sum, generator)
    if remembered is not None:
        log_u = averaged(remembered, log_u, moving_average)
    return torch.minimum(log_u, _LARGEST - log_sum)
