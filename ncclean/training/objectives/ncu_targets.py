"""NCU's phase UL: from the embeddings of a batch to soft alignments, and the loss towards them.

Every image may align with all N captions and, if its pair is to be forgotten, with its own negative
text in column N + 1. Optimal transport finds a soft alignment (Eqs. 8 and 9), an identity is mixed
in (Eq. 10), and the model's softmax is drawn to the result (Eq. 11).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ncclean.training.objectives.options import LastColumn, Unlearn
from ncclean.training.objectives.similarity import cosines, paired_cosines
from ncclean.training.transport import masked_sinkhorn


class TransportProblem(NamedTuple):
    """What `masked_sinkhorn` takes first: (N, C) cost and mask, (N,) and (C,) marginals."""

    cost: torch.Tensor
    mask: torch.Tensor
    row_marginal: torch.Tensor
    column_marginal: torch.Tensor


@torch.no_grad()
def realignment_targets(
    image: torch.Tensor,
    text: torch.Tensor,
    negative: torch.Tensor | None,
    forget: torch.Tensor,
    *,
    gamma: float = 0.7,
    epsilon: float = 0.03,
    max_iterations: int = 100,
    tolerance: float = 1e-4,
    last_column: LastColumn = "uniform",
    unlearn: Unlearn = "both",
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, d) L2-normalised embeddings, (N,) bool -> targets (N, C) by image, (C, N) by text.

    C is N + 1, or N if nothing is forgotten or there are no negative texts. `unlearn` gives the
    ablations of Table 5: `false_negatives` (V3) forgets nothing, all pairs get soft targets;
    `false_positives` (V4) leaves the targets of retained pairs hard. Raises `InfeasibleError` for a
    single pair that is to be forgotten: there is nothing left to align its caption with.
    """
    if unlearn == "false_negatives":
        forget = torch.zeros_like(forget)
    problem = transport_problem(image, text, negative, forget, last_column)
    plan = masked_sinkhorn(*problem, epsilon, max_iterations, tolerance)
    v2t, t2v = unlearning_targets(plan, forget, gamma)
    if unlearn == "false_positives":
        hard_v2t, hard_t2v = unlearning_targets(plan, forget, 0.0)
        v2t = torch.where(forget.unsqueeze(1), v2t, hard_v2t)
        is_retained = torch.zeros(len(t2v), dtype=torch.bool, device=forget.device)
        is_retained[: len(forget)] = ~forget
        t2v = torch.where(is_retained.unsqueeze(1), hard_t2v, t2v)
    return v2t, t2v


@torch.no_grad()
def transport_problem(
    image: torch.Tensor,
    text: torch.Tensor,
    negative: torch.Tensor | None,
    forget: torch.Tensor,
    last_column: LastColumn = "uniform",
) -> TransportProblem:
    """Cost and mask of Eqs. 8 and 9, with uniform marginals.

    The uniform last column holds 1 / (N + 1), so transport sends a forgotten image only about 1/n
    of its mass there, n being their number. `forget_share` gives it n / N, all that forgotten
    images have, and the captions share the rest. With nothing to forget the last column could
    receive nothing: it is left out, and the balanced N x N problem remains. Without negative texts
    it is left out, too: a forgotten image is shared out among the captions of other pairs.
    """
    if last_column not in ("uniform", "forget_share"):
        raise ValueError(f"last_column takes uniform or forget_share, got {last_column!r}")
    cost = 1 - cosines(image, text)
    n = len(cost)
    rows = cost.new_full((n,), 1 / n)
    mask = torch.ones_like(cost, dtype=torch.bool)
    mask &= ~torch.diag(forget)
    if negative is None or not forget.any():
        return TransportProblem(_scaled(cost), mask, rows, rows)
    columns = cost.new_full((n + 1,), 1 / (n + 1))
    if last_column == "forget_share":
        share = forget.to(cost.dtype).mean()
        columns = torch.cat([((1 - share) / n).expand(n), share.unsqueeze(0)])
        # Only the forgotten can fill the last column, and it takes all they have. Said in the mask
        # the plan is the same and found in a few iterations; left to Sinkhorn it is approached
        # ever more slowly.
        mask &= ~forget.unsqueeze(1)
    cost = torch.cat([cost, 1 - paired_cosines(image, negative).unsqueeze(1)], dim=1)
    return TransportProblem(
        _scaled(cost), torch.cat([mask, forget.unsqueeze(1)], dim=1), rows, columns
    )


@torch.no_grad()
def unlearning_targets(
    plan: torch.Tensor, forget: torch.Tensor, gamma: float = 0.7
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, C) plan, (N,) bool -> v2t (N, C) and t2v (C, N); C is N + 1, or N without negative texts.

    gamma plan + (1 - gamma) identity, Eq. 10; the identity has a one at (i, i) for a retained pair
    and at (i, N + 1) for a forgotten one, if there is such a column. A plan's rows hold 1/N, an
    identity's 1: taken literally transport would all but vanish. So both are brought to rows of
    mass 1 (columns for t2v) before they are mixed, and the mix once more, since the caption of a
    forgotten pair has no identity.
    """
    n = len(forget)
    if plan.shape not in ((n, n), (n, n + 1)):
        raise ValueError(f"the plan must be ({n}, {n}) or ({n}, {n + 1}), got {tuple(plan.shape)}")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
    identity = torch.diag((~forget).to(plan.dtype))
    if plan.shape[1] > n:
        identity = torch.cat([identity, forget.to(plan.dtype).unsqueeze(1)], dim=1)
    return _mixed(plan, identity, gamma), _mixed(plan.T, identity.T, gamma)


def realignment_logits(
    image: torch.Tensor,
    text: torch.Tensor,
    negative: torch.Tensor | None,
    scale: torch.Tensor | float,
) -> torch.Tensor:
    """(N, d) L2-normalised embeddings -> (N, N + 1) logits, the last column <v_i, n_i>.

    Without `negative`, (N, N): the counterpart of targets with nothing to forget.
    """
    similarity = cosines(image, text)
    if negative is not None:
        own = paired_cosines(image, negative).to(similarity.dtype)
        similarity = torch.cat([similarity, own.unsqueeze(1)], dim=1)
    return scale * similarity


def realignment_loss(logits: torch.Tensor, v2t: torch.Tensor, t2v: torch.Tensor) -> torch.Tensor:
    """KL(target || softmax) over rows, mean over N, plus the same over columns, mean over C.

    `logits` (N, C) are scaled by exp(logit_scale), `v2t` is (N, C), `t2v` (C, N). Eq. 11. A target
    of zeros (the caption of a forgotten pair where nothing may be aligned with it) adds nothing.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return _divergence(v2t, logits) + _divergence(t2v, logits.T)


def _divergence(target: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    target = target.to(logits.dtype)
    terms = torch.xlogy(target, target) - target * logits.log_softmax(dim=1)
    return terms.sum() / len(target)


def _mixed(plan: torch.Tensor, identity: torch.Tensor, gamma: float) -> torch.Tensor:
    return _to_mass_one(gamma * _to_mass_one(plan) + (1 - gamma) * _to_mass_one(identity))


def _to_mass_one(values: torch.Tensor) -> torch.Tensor:
    """Rows divided by their sums; rows of zeros stay."""
    mass = values.sum(dim=1, keepdim=True)
    return values / torch.where(mass > 0, mass, 1.0)


def _scaled(cost: torch.Tensor) -> torch.Tensor:
    return cost / cost.max().clamp_min(torch.finfo(cost.dtype).tiny)
