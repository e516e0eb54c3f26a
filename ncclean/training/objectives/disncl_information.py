"""Mutual information as DisNCL bounds it: discriminators between joint and shuffled pairs.

"Disentangled Noisy Correspondence Learning", Eqs. 9 and 12, with the Jensen-Shannon bound of Hjelm
et al. 2019. Discriminators always raise their bound; the encoders raise four of the bounds with
them and lower the other four against them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

# What each discriminator looks at: features F, invariant and exclusive halves, of image and text.
# Cooperative: I(T; V_S), I(V; T_S) of L_S and I(V; V_X), I(T; T_X) of L_X.
COOPERATIVE = {
    "text_in_image_invariant": ("text", "image_invariant"),
    "image_in_text_invariant": ("image", "text_invariant"),
    "image_in_image_exclusive": ("image", "image_exclusive"),
    "text_in_text_exclusive": ("text", "text_exclusive"),
}
# Adversarial: I(T; V_X), I(V; T_X) of L_X (Eq. 11) and I(V_S; V_X), I(T_S; T_X) of L_reg (Eq. 7).
LEAKS = {
    "text_in_image_exclusive": ("text", "image_exclusive"),
    "image_in_text_exclusive": ("image", "text_exclusive"),
}
OVERLAPS = {
    "image_overlap": ("image_invariant", "image_exclusive"),
    "text_overlap": ("text_invariant", "text_exclusive"),
}
PAIRS = {**COOPERATIVE, **LEAKS, **OVERLAPS}


def jsd_bound(joint_logits: torch.Tensor, marginal_logits: torch.Tensor) -> torch.Tensor:
    """Jensen-Shannon bound of information: E_joint[-softplus(-D)] + E_marginal[-softplus(D)].

    Eqs. 9 and 12, whose f is sigmoid(D). The larger, the more the two depend on each other. Of no
    logits it is a zero that is attached to the graph.
    """
    return _mean(-F.softplus(-joint_logits)) + _mean(-F.softplus(marginal_logits))


def adversarial_bound(
    joint_logits: torch.Tensor, marginal_logits: torch.Tensor, bounded: bool
) -> torch.Tensor:
    """The loss by which an encoder makes two variables independent, a scalar.

    The bound itself falls without end as the joint logits do: the encoder is paid for overshooting.
    `bounded` takes softplus(D) of the joint pairs, at least 0, and leaves the shuffled ones to the
    discriminator.
    """
    if bounded:
        return _mean(F.softplus(joint_logits))
    return jsd_bound(joint_logits, marginal_logits)


class Discriminator(nn.Module):
    """A three-layer perceptron on two vectors; returns logits of joint and of shuffled pairs.

    The hidden layers are spectrally normalised, so that logits cannot turn steep faster than the
    encoders move; the last layer is free, or logits would stay within a few tenths of 0.
    """

    def __init__(self, first_dim: int, second_dim: int, hidden_dim: int = 256) -> None:
        super().__init__()
        self.first_dim = first_dim
        self.input = spectral_norm(nn.Linear(first_dim + second_dim, hidden_dim))
        self.hidden = spectral_norm(nn.Linear(hidden_dim, hidden_dim))
        self.output = nn.Linear(hidden_dim, 1)

    def forward(
        self, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(N,) logits of (N, a) and (N, b) pairs, and of each first with the next pair's second.

        The first layer is linear, so its share of the second input is rolled, not computed anew.
        """
        weight = cast(torch.Tensor, self.input.weight)
        of_first = F.linear(first, weight[:, : self.first_dim], cast(torch.Tensor, self.input.bias))
        of_second = F.linear(second, weight[:, self.first_dim :])
        both = torch.cat([of_first + of_second, of_first + of_second.roll(1, dims=0)])
        hidden = F.leaky_relu(self.hidden(F.leaky_relu(both, 0.2)), 0.2)
        joint, shuffled = self.output(hidden)[:, 0].chunk(2)
        return joint, shuffled


class Discriminators(nn.ModuleDict):
    """The eight of them, by the names in `PAIRS`."""

    def __init__(
        self,
        feature_dim: int,
        head_dim: int,
        hidden_dim: int = 256,
        *,
        form: Literal["directions", "raw"] = "directions",
    ) -> None:
        def width(name: str) -> int:
            return feature_dim if name in ("image", "text") else head_dim

        super().__init__(
            {name: Discriminator(width(a), width(b), hidden_dim) for name, (a, b) in PAIRS.items()}
        )
        self.form = form

    def logits(
        self, name: str, embeddings: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(N,) logits of one discriminator on joint and on shuffled embeddings of these names."""
        first, second = (seen(embeddings[side], self.form) for side in PAIRS[name])
        joint, shuffled = self[name](first, second)
        return joint, shuffled


def seen(embedding: torch.Tensor, form: str) -> torch.Tensor:
    """The (N, d) features that a discriminator sees: raw, or directions with entries near 1.

    Directions are all that a cosine sees. A half that is shown raw can make itself seen through
    a discriminator of bounded slope by growing.
    """
    precise = embedding.to(torch.promote_types(embedding.dtype, torch.float32))
    if form == "raw":
        return precise
    return F.normalize(precise, dim=1) * math.sqrt(embedding.shape[1])


def _mean(values: torch.Tensor) -> torch.Tensor:
    return values.sum() / max(1, values.numel())
