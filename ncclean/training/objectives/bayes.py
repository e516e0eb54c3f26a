"""Bayesian weights: a draw from its posterior weighs every pair of the batch.

"When Contrastive Learning Meets Bayesian Modeling". The loss gives each positive and each negative
a weight with a Gamma prior (Eq. 1); an auxiliary u_i per row makes all conditionals Gamma
(Eqs. 5 and 6), so a few sweeps of Gibbs sampling draw the weights anew in every step.

With the paper's priors of rate 0 the similarity cancels from w s. If the loss uses the same s as
the sampling, as Algorithm 1 is written, its expectation is psi(1 + a_pos + K a_neg) - psi(1 +
a_pos) for any embeddings, and its gradient treats all K negatives alike. `BayesMode` lists
remedies. And w_pos does not tell how clean a pair is: it is *larger* the less similar the pair is.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ncclean.errors import InputError
from ncclean.training.objectives.base import (
    Embeddings,
    GlobalBatch,
    Objective,
    Phase,
    Terms,
    Tokenizer,
    method_phases,
)
from ncclean.training.objectives.options import BayesOptions, ObjectiveOptions
from ncclean.training.objectives.similarity import both_ways, by_rows

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


# Enough rows of negatives for quantiles; torch accepts 2^24 values at most.
_OBSERVED = 64
_FIRST_ROOM = 1024


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create the Bayesian objective."""
    return Bayes(method_phases(options), options.bayes)


class Bayes(Objective):
    """Contrastive loss with Bayesian weights, drawn anew in every step and for both directions."""

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
        """Return the loss terms `image_to_text` and `text_to_image`: half of each weighted loss."""
        image, text = embeddings["image"], embeddings["text"]
        remembered = recalled(self._memory, batch)
        blocks = by_rows(
            lambda rows: self._weighed(image, text, scale, batch.seed, remembered, rows), len(image)
        )
        losses, log_u, positive, negatives = zip(*blocks, strict=True)
        if self._memory is not None and batch.keys is not None:
            self._memory.remember(batch.keys, torch.cat(log_u))
        self._last = torch.cat(positive), torch.cat(negatives), batch.is_noisy
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
        """Weigh some rows; return their share of both losses, (2,), log u, (R, 2), logged terms.

        The logged terms are the image-to-text weights, of mean 1 in each row: the (R,) positives,
        and the negatives of the rows below `_OBSERVED`.
        """
        first = rows.start or 0
        # Seeded by block, so that recomputing it draws the same.
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
        negatives = observed[: max(0, _OBSERVED - first)]
        is_other = torch.ones_like(negatives, dtype=torch.bool)
        is_other.diagonal(first).fill_(False)
        positive = observed.diagonal(first).clone()  # a view would keep the matrix
        return torch.stack(losses), torch.stack(log_u, dim=1), positive, negatives[is_other]

    def statistics(self) -> dict[str, float]:
        """Return quantiles of the last step's weights, image to text, with mean 1 per row (Fig. 3).

        `w_pos/clean_correlation` correlates log w_pos with being clean, if the truth is known.
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

    `remembered` (N,) are the pairs' log u of earlier steps, NaN if none: each drawn u is averaged
    with them, u <- alpha u + (1 - alpha) drawn (section 2.2). The diagonal begins in column
    `first`.
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
            # w_ij s_ij = Gamma(a_ij) / u_i whatever s is: only the sum is needed, which is a Gamma
            # of the summed shapes: N draws instead of N K.
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
    """Return the weighted contrastive loss, mean of -log(w_ii s_ii / sum_j w_ij s_ij), a scalar.

    Eq. 1 with s = exp(`logits`), (N, K): cross-entropy of logits + log w to the diagonal, in
    float32 or better. Multiplying a row of w by a constant changes nothing. The diagonal begins in
    column `first`.
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
    """Return log(share e^remembered + (1 - share) e^drawn), a moving average of u given as log u.

    Where `remembered` is NaN, it is `drawn`.
    """
    mean = torch.logaddexp(
        remembered + torch.tensor(share, dtype=log_drawn.dtype).log(),
        log_drawn + torch.tensor(1 - share, dtype=log_drawn.dtype).log(),
    )
    return torch.where(remembered.isnan(), log_drawn, mean)


def _priors(
    log_s: torch.Tensor, options: BayesOptions, first: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (N, K) posterior shapes, including the likelihood's 1 on the positives, and log b."""
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


def sample_log_gamma(
    shape: torch.Tensor | float, log_rate: torch.Tensor, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Draw log x, x ~ Gamma(shape, rate), for each of the (...) `log_rate` (rates, not scales).

    Draws of a shape below 1 come so close to 0 that they underflow (half of those of shape 1e-3 are
    below 1e-300). So they are computed as Gamma(shape + 1) U^(1 / shape), whose logarithm is a sum.
    The generator must live on the device of `log_rate`.
    """
    shapes = torch.as_tensor(shape, dtype=log_rate.dtype, device=log_rate.device)
    raised = torch.where(shapes < 1, shapes + 1, shapes).expand_as(log_rate)
    log_draw = torch._standard_gamma(raised, generator=generator).log()
    if bool((shapes < 1).any()):
        uniform = torch.empty_like(log_rate).exponential_(generator=generator)  # -log U
        log_draw = log_draw - torch.where(shapes < 1, uniform / shapes, 0.0)
    return log_draw - log_rate


class PairMemory(nn.Module):
    """A memory of (width,) float32 values of each pair, by int64 keys; grows with the pairs seen.

    A module without parameters, so that it is saved and restored with the objective's own. All
    ranks see the global batch and so hold the same memory.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self._rows: dict[int, int] = {}
        self._values = torch.empty(_FIRST_ROOM, width)

    def __len__(self) -> int:
        return len(self._rows)

    def recall(self, keys: torch.Tensor) -> torch.Tensor:
        """Return (N, width) remembered values of pairs by their (N,) keys, NaN for unseen pairs."""
        rows = torch.tensor([self._rows.get(key, -1) for key in keys.tolist()], dtype=torch.long)
        values = torch.full((len(keys), self._width), float("nan"))
        values[rows >= 0] = self._values[rows[rows >= 0]]
        return values.to(keys.device)

    def remember(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Remember (N, width) values of pairs by key; for a repeated key, the last."""
        wanted = keys.tolist()
        for key in wanted:
            self._rows.setdefault(key, len(self._rows))
        if len(self._rows) > len(self._values):
            room = torch.empty(2 * len(self._rows), self._width)
            room[: len(self._values)] = self._values
            self._values = room
        last = {self._rows[key]: position for position, key in enumerate(wanted)}
        rows, places = torch.tensor(list(last)), torch.tensor(list(last.values()))
        self._values[rows] = values.detach().float().cpu()[places]

    def get_extra_state(self) -> dict[str, torch.Tensor]:
        """Return keys and values of the memory, for checkpoints."""
        keys = torch.tensor(list(self._rows), dtype=torch.int64)
        return {"keys": keys, "values": self._values[: len(keys)].clone()}

    def set_extra_state(self, state: Any) -> None:
        """Restore keys and values of the memory from a checkpoint."""
        self._rows = {key: row for row, key in enumerate(state["keys"].tolist())}
        self._values = state["values"].clone()


def recalled(memory: PairMemory | None, batch: GlobalBatch) -> torch.Tensor | None:
    """Return (N, 2) remembered log u of the pairs in both directions, or None without a memory."""
    if memory is None:
        return None
    if batch.keys is None:
        raise InputError("a moving average of u needs the uids of the pairs")
    return memory.recall(batch.keys)
