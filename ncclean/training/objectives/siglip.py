"""SigLIP: every image with every caption is a separate question, matched or not.

Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training". The loss of a pair is a sum over
its row and its column, so weights apply pair by pair: those of a selection, such as OSA's, weigh a
pair's row and column. Bayesian weights, in their place, weigh each of the N^2 terms.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
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
from ncclean.training.objectives.bayes import gibbs_sample, normalized_weights
from ncclean.training.objectives.options import BayesOptions, ObjectiveOptions
from ncclean.training.objectives.similarity import ALL, both_ways, by_rows

_FIRST_BIAS = -10.0  # the paper's


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create SigLIP's objective, with terms weighted by Bayesian weights on request."""
    bayes = options.bayes if options.siglip_weights == "bayes" else None
    return Siglip(method_phases(options), bayes)


class Siglip(Objective):
    """SigLIP's sigmoid loss with the model's logit bias, or a new one if a model has none."""

    name = "siglip"
    largest_scale = math.inf  # released models exceed 100

    def __init__(self, phases: tuple[Phase, ...], bayes: BayesOptions | None = None) -> None:
        super().__init__(phases)
        self._bias: torch.Tensor = torch.tensor(_FIRST_BIAS)
        self._bayes = bayes

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return the logit bias of a model without one, trained at the rate of its scale."""
        bias = getattr(model, "logit_bias", None)
        if isinstance(bias, torch.Tensor):
            self._bias = bias
            return {}
        module = nn.Module()
        module.value = nn.Parameter(self._bias.clone())
        self._bias = module.value
        self.phases = tuple(
            dataclasses.replace(
                phase,
                learning_rates={**phase.learning_rates, "bias": phase.learning_rates["scale"]},
            )
            for phase in self.phases
        )
        return {"bias": module}

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """Return the weighted loss of the batch as the one term `contrastive`."""
        return self._terms(embeddings, scale, batch, None)

    def local_terms(
        self,
        embeddings: Embeddings,
        rows: slice,
        scale: torch.Tensor,
        batch: GlobalBatch,
        phase: Phase,
    ) -> Terms | None:
        """Return the loss of the pairs `rows`; Bayesian weights are drawn for the whole batch."""
        return self._terms(embeddings, scale, batch, rows) if self._bayes is None else None

    def statistics(self) -> dict[str, float]:
        """Return the logit bias after the step, for the log."""
        return {"bias": float(self._bias.detach())}

    def _terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, rows: slice | None
    ) -> Terms:
        losses = siglip_losses(
            embeddings["image"],
            embeddings["text"],
            scale,
            self._bias.to(scale.device),
            rows,
            self._bayes,
            batch.seed,
        )
        if self._bayes is not None:  # its weights replace the selection's
            return {"contrastive": losses.mean()}
        weights = batch.weights.to(losses.dtype)
        return {"contrastive": ((weights if rows is None else weights[rows]) * losses).mean()}


def siglip_losses(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    bias: torch.Tensor | float,
    rows: slice | None = None,
    bayes: BayesOptions | None = None,
    seed: int = 0,
) -> torch.Tensor:
    """Return (N,) sigmoid losses, one for each pair, whose mean is the paper's loss.

    l_i = (sum_j w_ij softplus(-z_ij x_ij) + sum_j w'_ij softplus(-z_ji x_ji)) / 2 of the logits
    x_ij = scale <v_i, t_j> + bias, with z_ii = 1 and z_ij = -1 otherwise, from (N, d) L2-normalised
    embeddings. The weights are 1; with `bayes` they are drawn from their posterior given e^cos for
    both directions, and have mean 1 in each row. `rows` asks for those pairs only, (R,).
    """

    def losses(rows: slice) -> torch.Tensor:
        first = rows.start or 0
        weights: list[torch.Tensor | float] = [1.0, 1.0]
        if bayes is not None:
            # Seeded by block, so that recomputing it draws the same.
            generator = torch.Generator(image.device).manual_seed(seed + first)
            with torch.no_grad():
                weights = [
                    normalized_weights(gibbs_sample(cosines, bayes, generator, None, first)[0])
                    for cosines in both_ways(image, text, rows)
                ]
        sums = []
        for logits, weight in zip(both_ways(image, text, rows, scale), weights, strict=True):
            signs = torch.full_like(logits, -1.0)
            signs.diagonal(first).fill_(1.0)
            sums.append((weight * F.softplus(-signs * (logits + bias))).sum(dim=1))
        return (sums[0] + sums[1]) / 2

    return torch.cat(by_rows(losses, len(image), rows or ALL))
