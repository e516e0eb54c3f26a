"""The parts of DisNCL's loss: retrieval, bounds of information, and a reconstruction control.

"Disentangled Noisy Correspondence Learning". Retrieval, Eqs. 3 to 6, is on the cosines H of the
modality-invariant space. The paper sums over clean pairs; here it is the mean, so the terms'
proportion does not depend on the share of clean pairs. Without a clean pair each loss is a zero
that is attached to the graph.

Information, Eqs. 9 and 12, is bounded by discriminators between joint and shuffled pairs, with the
Jensen-Shannon bound of Hjelm et al. 2019. Discriminators always raise their bound; the encoders
raise four of the bounds with them and lower the other four.

Reconstruction is the entangled control of Fig. 4: the model without L_Dis and L_reg is "further
trained with using (V_S, V_X), (T_S, T_X) to reconstruct (V, T)", so that its halves together hold
all of the input. The paper says no more; here the features F_V and F_T are reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from ncclean.models.heads import perceptron
from ncclean.training.objectives.similarity import mean_or_zero

# exp(-1e4) is 0 in every precision, and so is its product with 0, unlike that of -inf.
_NEVER = -1e4
_SMALLEST_LOG = -4.0


@torch.no_grad()
def soft_margin(similarity: torch.Tensor, alpha: float = 0.2, m: float = 10) -> torch.Tensor:
    """Return (N,) margins alpha (m^h - 1) / (m - 1), without gradient.

    h are the pairs' cosines, in [0, 1]. Given below Eq. 3, which does not define negative cosines:
    their margin is 0 here.
    """
    return alpha * (m ** similarity.clamp(0, 1) - 1) / (m - 1)


def ranking_loss(
    similarity: torch.Tensor, clean: torch.Tensor, margin: torch.Tensor | float
) -> torch.Tensor:
    """Return the hinge loss with the hardest negative of both directions (Eq. 3), a scalar.

    It is the mean over clean pairs. `similarity` (N, N) are cosines, `clean` (N,) bool, `margin`
    (N,) or a scalar: pair i's own in both directions. Negatives come from the whole batch,
    including noisy pairs.
    """
    others = without_own(similarity)
    return mean_over(hinges(similarity.diagonal(), (others, others.T), margin), clean)


def without_own(similarity: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Lower each pair's cosine with itself below all others, in (R, N) cosines.

    It is on the diagonal that begins in column `first`.
    """
    is_own = torch.zeros_like(similarity, dtype=torch.bool)
    is_own.diagonal(first).fill_(True)
    return similarity.masked_fill(is_own, _NEVER)


def hinges(
    paired: torch.Tensor, others: Sequence[torch.Tensor], margin: torch.Tensor | float
) -> torch.Tensor:
    """Return (R,) hinge losses of pairs from their cosines and (R, N) cosines with all others."""
    image_to_text, text_to_image = (
        (margin - paired + direction.amax(dim=1)).relu() for direction in others
    )
    return image_to_text + text_to_image


def all_negatives_loss(similarity: torch.Tensor, margin: float) -> torch.Tensor:
    """Return the hinge loss with all negatives instead of the hardest (Eq. 3), a scalar.

    For heads with random initial weights. There the hardest negative of an image is as close as its
    own caption, and the loss soon stays at 2 alpha, with all pairs at one point.
    """
    paired = similarity.diagonal()
    return all_hinges(similarity, paired, margin) / max(1, len(paired) * (len(paired) - 1))


def all_hinges(
    similarity: torch.Tensor, paired: torch.Tensor, margin: float, first: int = 0
) -> torch.Tensor:
    """Return the sum of hinge losses over all negatives, for pairs from the number `first` on.

    `similarity` (R, N) are the cosines of these pairs with all.
    """
    of_rows = paired[first : first + len(similarity), None]
    both = (margin - of_rows + similarity).relu() + (margin - paired + similarity).relu()
    is_own = torch.zeros_like(similarity, dtype=torch.bool)
    is_own.diagonal(first).fill_(True)
    return both.masked_fill(is_own, 0).sum()


def soft_alignment_loss(
    similarity: torch.Tensor,
    clean: torch.Tensor,
    temperature: float = 0.05,
    beta3: float = 0.5,
    reverse: bool = False,
    mask_noisy: bool = False,
) -> torch.Tensor:
    """Cross-entropy to bootstrapped targets in both directions (Eq. 6), mean over clean pairs.

    similarity (N, N) cosines, clean (N,) bool. The target y of a direction is beta3 one-hot + (1 -
    beta3) times the softmax of the *opposite* direction, detached. The loss is -sum y log p;
    `reverse` is -sum p log y, which Theorem 3 needs, with log y at least -4. Eq. 4 zeroes the rows
    of noisy pairs, which changes nothing as they are never read; `mask_noisy` removes noisy
    candidates from the softmax, the likely intent.
    """
    logits = similarity / temperature
    return mean_over(soft_losses((logits, logits.T), clean, beta3, reverse, mask_noisy), clean)


def soft_losses(
    both: Sequence[torch.Tensor],
    clean: torch.Tensor,
    beta3: float,
    reverse: bool,
    mask_noisy: bool,
    first: int = 0,
) -> torch.Tensor:
    """Return (R,) cross-entropies to bootstrapped targets (Eq. 6), of the pairs from `first` on."""
    noisy = ~clean[None, :] & mask_noisy
    i2t, t2i = (direction.masked_fill(noisy, _NEVER).log_softmax(dim=1) for direction in both)
    onehot = torch.zeros_like(i2t)
    onehot.diagonal(first).fill_(1)
    total = torch.zeros_like(i2t[:, 0])
    for log_p, opposite in ((i2t, t2i), (t2i, i2t)):
        target = beta3 * onehot + (1 - beta3) * opposite.detach().exp()
        if reverse:
            # The clamp comes before the logarithm: no infinity where the target is 0.
            log_target = target.clamp_min(torch.tensor(_SMALLEST_LOG).exp().item()).log()
            total = total - (log_p.exp() * log_target).sum(dim=1)
        else:
            total = total - (target * log_p).sum(dim=1)
    return total


def mean_over(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the mean of the chosen (N,) values; a zero attached to the graph if none are."""
    return values[chosen].sum() / max(1, int(chosen.sum()))


# What each discriminator sees: features F, invariant and exclusive halves, of image and text.
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
    """Return a Jensen-Shannon bound of information from logits of joint and of shuffled pairs.

    E_joint[-softplus(-D)] + E_marginal[-softplus(D)], Eqs. 9 and 12, where f is sigmoid(D). The
    larger, the more the two depend on each other. Without logits it is a zero that is attached to
    the graph.
    """
    return mean_or_zero(-F.softplus(-joint_logits)) + mean_or_zero(-F.softplus(marginal_logits))


def adversarial_bound(
    joint_logits: torch.Tensor, marginal_logits: torch.Tensor, bounded: bool
) -> torch.Tensor:
    """Return the loss with which an encoder makes two variables independent, a scalar.

    The bound itself falls without limit with the joint logits, which rewards the encoder for
    overshooting. `bounded` uses softplus(D) of the joint pairs, at least 0, and leaves the shuffled
    ones to the discriminator.
    """
    if bounded:
        return mean_or_zero(F.softplus(joint_logits))
    return jsd_bound(joint_logits, marginal_logits)


class Discriminator(nn.Module):
    """A three-layer perceptron on two vectors; returns logits of joint and of shuffled pairs.

    The hidden layers are spectrally normalised, so logits cannot become steep faster than the
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
        """Return (N,) logits of (N, a) and (N, b) pairs, and of each first with the next second.

        The first layer is linear, so its share of the second input is rolled, not recomputed.
        """
        weight = cast(torch.Tensor, self.input.weight)
        of_first = F.linear(first, weight[:, : self.first_dim], cast(torch.Tensor, self.input.bias))
        of_second = F.linear(second, weight[:, self.first_dim :])
        both = torch.cat([of_first + of_second, of_first + of_second.roll(1, dims=0)])
        hidden = F.leaky_relu(self.hidden(F.leaky_relu(both, 0.2)), 0.2)
        joint, shuffled = self.output(hidden)[:, 0].chunk(2)
        return joint, shuffled


class Discriminators(nn.ModuleDict):
    """The eight discriminators, by the names in `PAIRS`."""

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
        """Return (N,) logits of a named discriminator on joint and on shuffled embeddings."""
        first, second = (seen(embeddings[side], self.form) for side in PAIRS[name])
        joint, shuffled = self[name](first, second)
        return joint, shuffled


def seen(embedding: torch.Tensor, form: str) -> torch.Tensor:
    """Return the (N, d) features that a discriminator sees: raw, or scaled to length sqrt(d).

    A cosine sees only directions. A raw half could grow to be seen through a discriminator of
    bounded slope. At this length, entries are near 1.
    """
    precise = embedding.to(torch.promote_types(embedding.dtype, torch.float32))
    if form == "raw":
        return precise
    return F.normalize(precise, dim=1) * math.sqrt(embedding.shape[1])


class Decoders(nn.ModuleDict):
    """One decoder per modality, shaped like the heads: from both of its halves to its features."""

    def __init__(
        self,
        feature_dim: int,
        head_dim: int,
        hidden_dim: int = 256,
        *,
        form: Literal["directions", "raw"] = "directions",
    ) -> None:
        super().__init__(
            {
                modality: perceptron(2 * head_dim, hidden_dim, feature_dim)
                for modality in ("image", "text")
            }
        )
        self.form = form


def unexplained_share(decoders: Decoders, embeddings: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the reconstruction loss: the share of variance that the decoders miss, both summed.

    Takes the (N, ...) embeddings of `disncl.encoder_terms`. It is 1 for a decoder that always gives
    the mean. The features are the target and get no gradient, or the towers could make them easy.
    Without pairs it is a zero that is attached to the graph.
    """
    shares = []
    for modality, decoder in decoders.items():
        halves = [
            seen(embeddings[f"{modality}_{half}"], decoders.form)
            for half in ("invariant", "exclusive")
        ]
        target = _standardised(seen(embeddings[modality].detach(), decoders.form))
        error = (decoder(torch.cat(halves, dim=1)) - target).square()
        shares.append(error.sum() / max(1, error.numel()))
    return torch.stack(shares).sum()


def _standardised(features: torch.Tensor) -> torch.Tensor:
    """Standardise (N, d) to mean 0 in each dimension, and variance 1 over all together.

    Over all: a dimension in which features hardly differ should not count as much as the others.
    """
    centred = features - features.sum(dim=0) / max(1, len(features))
    variance = centred.square().sum() / max(1, centred.numel())
    return centred / variance.sqrt().clamp_min(torch.finfo(variance.dtype).tiny)
