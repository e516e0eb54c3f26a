"""NCU's phase UL: soft alignments from a batch's embeddings, and the loss towards them.

Every image may align with all N captions and, if its pair is to be forgotten, with its own negative
text in column N + 1. Optimal transport finds a soft alignment (Eqs. 8 and 9), an identity is mixed
in (Eq. 10), and the model's softmax is trained towards the result (Eq. 11).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch

from ncclean.training.objectives.options import LastColumn, Unlearn, Variant
from ncclean.training.objectives.similarity import (
    ALL,
    by_rows,
    paired_cosines,
    precise,
    row_blocks,
    row_cosines,
)
from ncclean.training.transport import masked_sinkhorn


class TransportProblem(NamedTuple):
    """The cost and mask (N, C) and the marginals (N,) and (C,) that `masked_sinkhorn` takes."""

    cost: torch.Tensor
    mask: torch.Tensor
    row_marginal: torch.Tensor
    column_marginal: torch.Tensor


@dataclass(frozen=True)
class Targets:
    """The softmax targets that a transport plan gives NCU, computed by row (Eq. 10).

    gamma plan + (1 - gamma) identity, of an (N, C) plan and (N,) marks of forgotten pairs; C is N +
    1, or N without negative texts. The identity has a one at (i, i) for a retained pair and at (i,
    N + 1) for a forgotten one, if there is such a column. A plan's rows hold 1/N, an identity's 1:
    taken literally, transport would all but vanish. So both are normalised to rows of mass 1
    (columns for texts) before mixing, and the mix again, since the caption of a forgotten pair has
    no identity. With `hard` the targets of retained pairs are only the identity. Raises
    `ValueError` for another shape and for a gamma outside [0, 1].
    """

    plan: torch.Tensor
    forget: torch.Tensor
    gamma: float = 0.7
    hard: bool = False
    weight: ClassVar[float] = 1.0  # of the sum of both divergences

    def __post_init__(self) -> None:
        n, shape = len(self.forget), tuple(self.plan.shape)
        if shape not in ((n, n), (n, n + 1)):
            raise ValueError(f"the plan must be ({n}, {n}) or ({n}, {n + 1}), got {shape}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {self.gamma}")

    @property
    def plan_of_texts(self) -> torch.Tensor:
        """The (C, N) plan whose rows are captions; the last row is that of the negative texts."""
        return self.plan.T

    @torch.no_grad()
    def by_image(self, rows: slice = ALL) -> torch.Tensor:
        """Return (R, C) targets over the texts, of the images with these numbers."""
        plan, forget = self.plan[rows], self.forget[rows]
        identity = _identity(plan, forget, rows)
        if plan.shape[1] > len(self.forget):
            identity[:, -1] = forget
        return self._mixed(plan, identity, forget)

    @torch.no_grad()
    def by_text(self, rows: slice = ALL) -> torch.Tensor:
        """Return (R, N) targets over the images, of the captions with these numbers.

        The last row is that of the negative texts.
        """
        plan, forget = self.plan_of_texts[rows], self.forget[rows]
        identity = _identity(plan, forget, rows)
        if len(plan) > len(forget):
            identity[-1] = self.forget
            forget = torch.cat([forget, forget.new_ones(1)])
        return self._mixed(plan, identity, forget)

    def both(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all targets: by image, v2t (N, C), and by text, t2v (C, N)."""
        return self.by_image(), self.by_text()

    def _mixed(
        self, plan: torch.Tensor, identity: torch.Tensor, is_soft: torch.Tensor
    ) -> torch.Tensor:
        """Mix plan and identity; `is_soft` (R,) are the rows that `hard` leaves unchanged."""
        share, rest = plan.new_tensor(self.gamma), plan.new_tensor(1 - self.gamma)
        if self.hard:
            share = torch.where(is_soft, share, 0.0).unsqueeze(1)
            rest = torch.where(is_soft, rest, 1.0).unsqueeze(1)
        return _to_mass_one(share * _to_mass_one(plan) + rest * _to_mass_one(identity))


@dataclass(frozen=True)
class ReleasedTargets(Targets):
    """The targets of NCU's released code, which differ from Eq. 10 in four ways.

    Captions have a separate plan, (C, N), solved with rows and columns exchanged. The identity is
    mixed in unchanged: that of the negative texts has a one for each forgotten image. The result is
    not normalised to mass 1. And the loss is half the sum of both divergences.
    """

    text_plan: torch.Tensor = field(kw_only=True)
    weight: ClassVar[float] = 0.5

    @property
    def plan_of_texts(self) -> torch.Tensor:
        """Return the (C, N) plan solved with rows and columns exchanged."""
        return self.text_plan

    def _mixed(
        self, plan: torch.Tensor, identity: torch.Tensor, is_soft: torch.Tensor
    ) -> torch.Tensor:
        return self.gamma * _to_mass_one(plan) + (1 - self.gamma) * identity


@torch.no_grad()
def realigned(
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
    variant: Variant = "published",
) -> Targets:
    """Return NCU's targets that realign forgotten pairs, from (N, d) embeddings and (N,) bool.

    Only one (N, C) matrix of floats is held, the plan, and a mask while solving. C is N + 1, or N
    if nothing is forgotten or there are no negative texts. `unlearn` gives the ablations of Table
    5: `false_negatives` (V3) forgets nothing, all pairs get soft targets; `false_positives` (V4)
    leaves the targets of retained pairs hard. The `released` variant holds two plans, see
    `ReleasedTargets`. Raises `InfeasibleError` for a single pair to forget: nothing is left to
    align its caption with.
    """
    if unlearn == "false_negatives":
        forget = torch.zeros_like(forget)
    problem = transport_problem(image, text, negative, forget, last_column)
    if variant == "released":
        cost, mask, rows, columns = problem
        plan, text_plan = (
            masked_sinkhorn(*sides, epsilon, max_iterations, tolerance, stop="potentials")
            for sides in ((cost, mask, rows, columns), (cost.T, mask.T, columns, rows))
        )
        return ReleasedTargets(plan, forget, gamma, text_plan=text_plan)
    plan = masked_sinkhorn(*problem, epsilon, max_iterations, tolerance, overwrite_cost=True)
    return Targets(plan, forget, gamma, hard=unlearn == "false_positives")


@torch.no_grad()
def transport_problem(
    image: torch.Tensor,
    text: torch.Tensor,
    negative: torch.Tensor | None,
    forget: torch.Tensor,
    last_column: LastColumn = "uniform",
) -> TransportProblem:
    """Return cost, mask and uniform marginals of NCU's transport problem (Eqs. 8 and 9).

    The uniform last column holds 1 / (N + 1), so transport sends a forgotten image only about 1/n
    of its mass there, where n is their number. `forget_share` gives the column n / N, all the mass
    of forgotten images, and the captions share the rest. With nothing to forget, the last column
    could receive nothing: it is omitted, and the balanced N x N problem remains. It is also omitted
    without negative texts: the captions of other pairs then share a forgotten image.
    """
    if last_column not in ("uniform", "forget_share"):
        raise ValueError(f"last_column takes uniform or forget_share, got {last_column!r}")
    n, has_last = len(image), negative is not None and bool(forget.any())
    width = n + 1 if has_last else n
    dtype = precise(image, text)[0].dtype
    cost = torch.empty(n, width, dtype=dtype, device=image.device)
    for block in row_blocks(n, n):
        cost[block, :n] = 1 - row_cosines(image, text, block)
    mask = torch.ones(n, width, dtype=torch.bool, device=image.device)
    mask.diagonal().copy_(~forget)
    rows = cost.new_full((n,), 1 / n)
    columns = cost.new_full((width,), 1 / width)
    if negative is not None and has_last:
        cost[:, n] = 1 - paired_cosines(image, negative)
        if last_column == "forget_share":
            share = forget.to(cost.dtype).mean()
            columns = torch.cat([((1 - share) / n).expand(n), share.unsqueeze(0)])
            # Only forgotten images can fill the last column, and it takes all they have. Stating
            # this in the mask gives the same plan in a few iterations; Sinkhorn alone approaches it
            # ever more slowly.
            mask &= ~forget.unsqueeze(1)
        mask[:, n] = forget
    cost /= cost.max().clamp_min(torch.finfo(cost.dtype).tiny)
    return TransportProblem(cost, mask, rows, columns)


@torch.no_grad()
def unlearning_targets(
    plan: torch.Tensor, forget: torch.Tensor, gamma: float = 0.7
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return NCU's targets v2t (N, C) and t2v (C, N) for a transport plan and a forget set.

    `plan` is (N, C), the forget set (N,) bool.
    """
    return Targets(plan, forget, gamma).both()


def realignment_logits(
    image: torch.Tensor,
    text: torch.Tensor,
    negative: torch.Tensor | None,
    scale: torch.Tensor | float,
    rows: slice = ALL,
) -> torch.Tensor:
    """Return (N, N + 1) logits from (N, d) unit embeddings, with the last column <v_i, n_i>.

    Without `negative`, (N, N): the counterpart of targets with nothing to forget. With `rows`,
    those rows, (R, ...).
    """
    similarity = row_cosines(image, text, rows)
    if negative is not None:
        last = paired_cosines(image, negative)[rows].to(similarity.dtype)
        similarity = torch.cat([similarity, last.unsqueeze(1)], dim=1)
    return scale * similarity


def realignment(
    image: torch.Tensor,
    text: torch.Tensor,
    negative: torch.Tensor | None,
    scale: torch.Tensor | float,
    targets: Targets,
) -> torch.Tensor:
    """Return NCU's realignment loss from embeddings and their targets, a scalar.

    The embeddings are (N, d), L2-normalised.
    """
    n, width = targets.plan.shape
    if width == n:
        negative = None

    def divergences(rows: slice) -> torch.Tensor:
        logits = realignment_logits(image, text, negative, scale, rows)
        if rows == ALL:
            return realignment_loss(logits, targets.by_image(), targets.by_text())
        by_image = _divergence(targets.by_image(rows), logits)
        # After the last captions come the negative texts, one row for all.
        captions = slice(rows.start, None) if rows.stop == n else rows
        similarity = row_cosines(text, image, captions)
        if negative is not None and rows.stop == n:
            similarity = torch.cat([similarity, paired_cosines(image, negative).unsqueeze(0)])
        by_text = _divergence(targets.by_text(captions), scale * similarity)
        return by_image / n + by_text / width

    return targets.weight * torch.stack(by_rows(divergences, n)).sum()


def realignment_loss(logits: torch.Tensor, v2t: torch.Tensor, t2v: torch.Tensor) -> torch.Tensor:
    """Return KL(target || softmax) over rows, mean over N, plus the same over columns, mean over C.

    `logits` (N, C) are scaled by exp(logit_scale), `v2t` is (N, C), `t2v` (C, N). NCU's Eq. 11. A
    target of zeros (the caption of a forgotten pair that may not be aligned) adds nothing.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    by_image, by_text = _divergence(v2t, logits), _divergence(t2v, logits.T)
    return by_image / len(v2t) + by_text / len(t2v)


def _divergence(target: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The sum over rows of KL(target || softmax of the logits)."""
    target = target.to(logits.dtype)
    return (torch.xlogy(target, target) - target * logits.log_softmax(dim=1)).sum()


def _to_mass_one(values: torch.Tensor) -> torch.Tensor:
    """Divide rows by their sums; keep rows of zeros."""
    mass = values.sum(dim=1, keepdim=True)
    return values / torch.where(mass > 0, mass, 1.0)


def _identity(plan: torch.Tensor, forget: torch.Tensor, rows: slice) -> torch.Tensor:
    """Return ones on the diagonal where these rows of a plan are retained pairs; else zeros."""
    identity = torch.zeros_like(plan)
    identity.diagonal(rows.start or 0).copy_(~forget)
    return identity
