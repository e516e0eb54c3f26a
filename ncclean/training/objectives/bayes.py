"""Bayesian weights: every pair of the batch is weighed by a draw from its posterior.

"When Contrastive Learning Meets Bayesian Modeling". The loss gives each positive and each negative
a weight with a Gamma prior (Eq. 1); an auxiliary u_i per row makes all conditionals Gamma
(Eqs. 5 and 6), so a few sweeps of Gibbs sampling draw the weights anew in every step.

With the paper's priors of rate 0 the similarity cancels from w s. If the loss uses the same s as
the sampling, as Algorithm 1 is written, its expectation is psi(1 + a_pos + K a_neg) - psi(1 +
a_pos) for any embeddings, and its gradient treats all K negatives alike. `BayesMode` says what can
be done about it. And w_pos does not tell how clean a pair is: the less alike it is, the *larger*.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ncclean.training.objectives.log_gamma import sample_log_gamma
from ncclean.training.objectives.options import BayesOptions


@torch.no_grad()
def sample_log_weights(
    log_similarity: torch.Tensor,
    a_pos: float = 5,
    a_neg: float = 10,
    b_pos: float = 0,
    b_neg: float = 0,
    a_u: float = 1,
    b_u: float = 0,
    sweeps: int = 2,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw (N, K) log weights from their posterior, from log similarities (own on the diagonal).

    Starts at w = 1; each sweep draws u_i ~ Gamma(a_u, rate b_u + sum_j w_ij s_ij) (Eq. 5), then
    w_ii ~ Gamma(1 + a_pos, rate u_i s_ii + b_pos) and w_ij ~ Gamma(a_neg, rate u_i s_ij + b_neg)
    (Eq. 6; its second line writes s_ik- only). For the other direction pass the transpose.
    """
    options = BayesOptions(
        a_pos=a_pos, a_neg=a_neg, b_pos=b_pos, b_neg=b_neg, a_u=a_u, b_u=b_u, sweeps=sweeps
    )
    return gibbs_sample(log_similarity, options, generator)[0]


@torch.no_grad()
def gibbs_sample(
    log_similarity: torch.Tensor,
    options: BayesOptions,
    generator: torch.Generator | None = None,
    remembered: torch.Tensor | None = None,
    first: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gibbs-sample (N, K) log weights and (N,) log u from (N, K) log similarities.

    `remembered` (N,) are the pairs' log u of earlier steps, NaN where there is none: each drawn u
    is averaged with them, u <- alpha u + (1 - alpha) drawn (section 2.2). The diagonal begins in
    column `first`.
    """
    dtype = torch.promote_types(log_similarity.dtype, torch.float32)
    log_s = log_similarity.to(dtype)
    b_pos, b_neg = options.rates
    shapes, log_prior = _priors(log_s, options, first)
    improper = b_pos == b_neg == 0
    total = float(shapes.sum(dim=1)[0]) if improper and len(log_s) else 0.0
    log_sum = log_s.logsumexp(dim=1)
    for sweep in range(options.sweeps):
        log_u = sample_log_gamma(options.a_u, _plus(log_sum, options.b_u), generator)
        if remembered is not None and options.moving_average is not None:
            log_u = averaged(remembered, log_u, options.moving_average)
        last = sweep == options.sweeps - 1
        if improper and not last:
            # w_ij s_ij = Gamma(a_ij) / u_i whatever s is: only the sum is needed, and it is a
            # Gamma of the summed shapes. N draws in place of N K.
            log_sum = sample_log_gamma(total, log_u, generator)
            continue
        rate = log_u[:, None] + log_s
        if not improper:
            rate = torch.logaddexp(rate, log_prior)
        log_w = sample_log_gamma(shapes, rate, generator)
        if not last:
            log_sum = (log_w + log_s).logsumexp(dim=1)
    return log_w, log_u


def weighted_contrastive_loss(
    logits: torch.Tensor, log_weights: torch.Tensor, first: int = 0
) -> torch.Tensor:
    """Weighted contrastive loss of (N, K) logits, mean of -log(w_ii s_ii / sum_j w_ij s_ij).

    Eq. 1 with s = exp(logits): cross-entropy of logits + log w to the diagonal, in float32 or
    better. Multiplying a row of w by a constant changes nothing. The diagonal begins in column
    `first`.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    weighted = logits.to(dtype) + log_weights.to(dtype)
    target = torch.arange(first, first + len(logits), device=logits.device)
    return F.cross_entropy(weighted, target)


def normalized_weights(log_weights: torch.Tensor) -> torch.Tensor:
    """Normalise (N, K) log weights to weights of mean 1 in each row."""
    columns = log_weights.shape[1]
    return columns * log_weights.softmax(dim=1)


def averaged(remembered: torch.Tensor, log_drawn: torch.Tensor, share: float) -> torch.Tensor:
    """Moving average of u, log(share e^remembered + (1 - share) e^drawn); NaN remembers none."""
    kept = torch.logaddexp(
        remembered + torch.tensor(share, dtype=log_drawn.dtype).log(),
        log_drawn + torch.tensor(1 - share, dtype=log_drawn.dtype).log(),
    )
    return torch.where(remembered.isnan(), log_drawn, kept)


def _priors(
    log_s: torch.Tensor, options: BayesOptions, first: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, K) shapes of the posterior, with the likelihood's 1 on the positives, and log b."""
    b_pos, b_neg = options.rates
    shapes = torch.full_like(log_s, options.a_neg)
    shapes.diagonal(first).fill_(1 + options.a_pos)
    prior = torch.full_like(log_s, b_neg)
    prior.diagonal(first).fill_(b_pos)
    return shapes, prior.log()


def _plus(log_value: torch.Tensor, constant: float) -> torch.Tensor:
    if not constant:
        return log_value
    return torch.logaddexp(log_value, torch.tensor(constant, dtype=log_value.dtype).log())
