"""DisNCL's retrieval losses on the cosines H of the modality-invariant space.

"Disentangled Noisy Correspondence Learning", Eqs. 3 to 6. The paper sums over clean pairs; here it
is the mean, so that the terms keep their proportion whatever the share of clean pairs. Without a
clean pair each loss is a zero that is attached to the graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# exp(-1e4) is 0 in every precision, and 0 times it is 0, which is not so for -inf.
_NEVER = -1e4
_SMALLEST_LOG = -4.0


@torch.no_grad()
def soft_margin(similarity: torch.Tensor, alpha: float = 0.2, m: float = 10) -> torch.Tensor:
    """(N,) margins alpha (m^h - 1) / (m - 1) from the pairs' cosines h in [0, 1]; no gradient.

    Below Eq. 3, which leaves negative cosines open: their margin is 0 here.
    """
    return alpha * (m ** similarity.clamp(0, 1) - 1) / (m - 1)


def ranking_loss(
    similarity: torch.Tensor, clean: torch.Tensor, margin: torch.Tensor | float
) -> torch.Tensor:
    """Hinge loss with the hardest negative of both directions (Eq. 3), mean over clean pairs.

    similarity (N, N) cosines, clean (N,) bool, margin (N,) or one for all: pair i's own in both
    directions. Negatives are taken from the whole batch, noisy pairs included.
    """
    others = without_own(similarity)
    return mean_over(hinges(similarity.diagonal(), (others, others.T), margin), clean)


def without_own(similarity: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Lower the cosine of each pair with itself below all others, in (R, N) cosines.

    That is on the diagonal that begins in column `first`.
    """
    is_own = torch.zeros_like(similarity, dtype=torch.bool)
    is_own.diagonal(first).fill_(True)
    return similarity.masked_fill(is_own, _NEVER)


def hinges(
    own: torch.Tensor, others: Sequence[torch.Tensor], margin: torch.Tensor | float
) -> torch.Tensor:
    """(R,) hinge losses of pairs from their cosines and (R, N) cosines with all others."""
    image_to_text, text_to_image = (
        (margin - own + direction.amax(dim=1)).relu() for direction in others
    )
    return image_to_text + text_to_image


def all_negatives_loss(similarity: torch.Tensor, margin: float) -> torch.Tensor:
    """Hinge loss with all negatives in place of the hardest (Eq. 3), a scalar.

    For heads that start from random weights. There the hardest negative of an image is as close as
    its own caption, and the loss soon rests at 2 alpha, with all pairs at one point.
    """
    own = similarity.diagonal()
    return all_hinges(similarity, own, margin) / max(1, len(own) * (len(own) - 1))


def all_hinges(
    similarity: torch.Tensor, own: torch.Tensor, margin: float, first: int = 0
) -> torch.Tensor:
    """Sum of hinge losses over all negatives, for (R, N) cosines of the pairs from `first` on."""
    of_rows = own[first : first + len(similarity), None]
    both = (margin - of_rows + similarity).relu() + (margin - own + similarity).relu()
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

    similarity (N, N) cosines, clean (N,) bool. The target y of a direction is beta3 one-hot +
    (1 - beta3) times the softmax of the *opposite* direction, detached. The loss is -sum y log p;
    `reverse` is -sum p log y, which Theorem 3 needs, with log y at least -4. Eq. 4 zeroes the rows
    of noisy pairs, which changes nothing as they are never read; `mask_noisy` takes noisy
    candidates out of the softmax, the likely intent.
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
    """(R,) cross-entropies to bootstrapped targets, of the pairs from `first` on."""
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
    """Mean of the chosen of (N,) values; a zero that is attached to the graph if none are."""
    return values[chosen].sum() / max(1, int(chosen.sum()))
