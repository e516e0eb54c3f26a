"""Gamma variables in the log domain, where neither a tiny draw nor a huge rate is lost."""

from __future__ import annotations

import torch


def sample_log_gamma(
    shape: torch.Tensor | float, log_rate: torch.Tensor, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Draw log x, x ~ Gamma(shape, rate), for each of the (...) `log_rate` (rates, not scales).

    Draws of a shape below 1 come so close to 0 that they underflow (half of those of shape 1e-3
    are smaller than 1e-300). So they are taken as Gamma(shape + 1) U^(1 / shape), whose logarithm
    is a sum. The generator must live on the device of `log_rate`.
    """
    shapes = torch.as_tensor(shape, dtype=log_rate.dtype, device=log_rate.device)
    raised = torch.where(shapes < 1, shapes + 1, shapes).expand_as(log_rate)
    log_draw = torch._standard_gamma(raised, generator=generator).log()
    if bool((shapes < 1).any()):
        uniform = torch.empty_like(log_rate).exponential_(generator=generator)  # -log U
        log_draw = log_draw - torch.where(shapes < 1, uniform / shapes, 0.0)
    return log_draw - log_rate
