"""DeCL: the contrastive loss as a sum over pairs, with a random variable in place of log-sum-exp.

Chen et al. 2022, "Why do we need large batchsizes in contrastive learning? A gradient-bias
perspective": 1 / x = int_0^inf e^(-u x) du, so u_i ~ Gamma(1, rate sum_j s_ij) makes the loss
-log s_ii + u_i sum_j s_ij, whose gradient with the u_i of larger samples has less bias.
"""

from __future__ import annotations

import math

import torch

from ncclean.training.objectives.bayes import averaged
from ncclean.training.objectives.log_gamma import sample_log_gamma

# A draw has u_i sum_j s_ij ~ Exponential(1), so 50 is beyond any draw. A remembered u may be much
# too large once the similarities have grown: without a bound, one such pair is the whole gradient.
_LARGEST = math.log(50.0)


def loss_of_sums(own: torch.Tensor, log_sum: torch.Tensor, log_u: torch.Tensor) -> torch.Tensor:
    """DeCL's loss, the mean of -log s_ii + u_i sum_j s_ij, a scalar.

    From (N,) own logits, (N,) logsumexps of the rows and (N,) log u.
    """
    return (-own + (log_u.to(log_sum.dtype) + log_sum).exp()).mean()


@torch.no_grad()
def draw_log_u(
    log_sum: torch.Tensor,
    remembered: torch.Tensor | None = None,
    moving_average: float = 0.5,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw (N,) log u, u ~ Gamma(1, rate sum_j s_ij), from (N,) float32 logsumexps of the rows.

    `remembered` (N,) log u of earlier steps (NaN: none) keeps the share `moving_average`.
    """
    log_u = sample_log_gamma(1.0, log_sum, generator)
    if remembered is not None:
        log_u = averaged(remembered, log_u, moving_average)
    return torch.minimum(log_u, _LARGEST - log_sum)
