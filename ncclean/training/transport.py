"""Optimal transport with forbidden entries, by Sinkhorn's algorithm in the log domain.

The problem is Eq. 9 of "Unlearning the Noisy Correspondence Makes CLIP More Robust": over plans P
that are zero where the mask forbids it, with row sums a and column sums b,

    minimise <P, C> - epsilon H(P),    H(P) = -sum P log P.

Its solution is diag(exp f) K diag(exp g) with K = mask * exp(-C / epsilon). Scaling rows and
columns in turn finds f and g (supplement, Algorithm 2); with logarithms kept throughout, no entry
of K underflows however small epsilon is.
"""

from __future__ import annotations

import itertools
import logging
from typing import Literal

import numpy as np
import torch

from ncclean.errors import InfeasibleError
from ncclean.training.objectives.similarity import row_blocks

logger = logging.getLogger(__name__)

Stop = Literal["mass", "potentials"]

# Share of the total mass by which sums of float32 marginals may disagree.
_ROUNDING = 1e-5
# Share of the total mass that proves a violation; sums are computed in float64.
_PROOF = 1e-6
_unconverged = itertools.count(1)


@torch.no_grad()
def masked_sinkhorn(
    cost: torch.Tensor,
    mask: torch.Tensor,
    row_marginal: torch.Tensor,
    column_marginal: torch.Tensor,
    epsilon: float = 0.03,
    max_iterations: int = 100,
    tolerance: float = 1e-4,
    *,
    overwrite_cost: bool = False,
    stop: Stop = "mass",
) -> torch.Tensor:
    """Transport plan (..., N, M) for a cost, a mask and marginals, by Sinkhorn iterations.

    `mask` is true (or non-zero) where mass may go; elsewhere the plan is exactly 0 and the cost is
    not read. Float64 costs are solved in float64, all others in float32. Column sums are exact up
    to rounding; a problem is done when its row sums are off by at most `tolerance` in all. Leading
    dimensions are separate problems (mask and marginals broadcast over them): each stops by itself,
    so its plan does not depend on the others. With `stop="potentials"` a problem is done when the
    potentials of its rows, epsilon f, move by less than `tolerance` in all: the rule of NCU's
    released code. After `max_iterations` the plan is returned as it is, and the log says so. No
    gradients are recorded. With `overwrite_cost` the plan reuses the memory of the cost, if the
    precision is the same.

    Raises `InfeasibleError`, with the row or column at fault, if the marginals differ in mass, or a
    row or column holds more than all its allowed partners. Finding several rows that together do (a
    violation of Hall's condition) takes the iterations: if they do not converge, it is sought among
    the sets of rows that lag most, and reported only if proven. A missed one, tiny or after few
    iterations, yields a plan whose row sums are off. Raises `ValueError` for options out of range
    or shapes that do not fit.

    >>> mask = torch.tensor([[0, 1, 1], [1, 1, 0]])
    >>> halves, thirds = torch.full((2,), 1 / 2), torch.full((3,), 1 / 3)
    >>> (6 * masked_sinkhorn(torch.rand(2, 3), mask, halves, thirds)).round().int().tolist()
    [[0, 1, 2], [2, 1, 0]]
    """
    if not epsilon > 0 or max_iterations < 1:
        raise ValueError("epsilon must be positive and max_iterations at least 1")
    dtype = torch.float64 if cost.dtype == torch.float64 else torch.float32
    shape, (n, m) = cost.shape, cost.shape[-2:]
    rows = row_marginal.to(dtype).expand(*shape[:-2], n).reshape(-1, n)
    columns = column_marginal.to(dtype).expand(*shape[:-2], m).reshape(-1, m)
    allowed = mask.bool().expand(shape).reshape(-1, n, m)
    if not bool((rows > 0).all() and (columns > 0).all()):
        # A row or column without mass needs no partner.
        allowed = allowed & (rows > 0).unsqueeze(2) & (columns > 0).unsqueeze(1)
    _check_marginals(allowed, rows, columns)

    log_kernel = cost.to(dtype).reshape(-1, n, m)
    log_kernel = log_kernel.div_(-epsilon) if overwrite_cost else log_kernel / -epsilon
    # Apart from the kernel, which becomes the plan, and the mask, nothing as large is held.
    by_row, by_column = row_blocks(n, len(rows) * m), row_blocks(m, len(rows) * n)
    for block in by_row:
        log_kernel[:, block].masked_fill_(~allowed[:, block], -torch.inf)
    log_rows, log_columns = rows.log(), columns.log()
    f, g = torch.zeros_like(rows), torch.zeros_like(columns)
    is_done = torch.zeros(len(rows), 1, dtype=torch.bool, device=cost.device)
    for iteration in range(max_iterations + 1):
        row_mass = torch.cat(
            [torch.logsumexp(log_kernel[:, block] + g.unsqueeze(1), dim=2) for block in by_row],
            dim=1,
        )
        if iteration > 0:  # until then, f matches no g
            error = ((f + row_mass).exp() - rows).abs().sum(dim=1, keepdim=True)
            if stop == "mass":
                is_done |= error <= tolerance
            if iteration == max_iterations or is_done.all():
                break
        moved = torch.where(is_done, f, _potential(log_rows, row_mass))
        steps, f = epsilon * (moved - f).abs().sum(dim=1, keepdim=True), moved
        column_mass = torch.cat(
            [
                torch.logsumexp(log_kernel[:, :, block] + f.unsqueeze(2), dim=1)
                for block in by_column
            ],
            dim=1,
        )
        g = torch.where(is_done, g, _potential(log_columns, column_mass))
        if stop == "potentials":
            is_done |= steps < tolerance
    unfinished = (~is_done[:, 0]).nonzero()[:, 0].tolist()
    for problem in unfinished:
        # If no plan exists, the rows that hold too much lag in every iteration.
        behind = log_rows[problem] - (f + row_mass)[problem]
        _check_sets(allowed[problem], rows[problem], columns[problem], behind)
    if unfinished:
        _log_unconverged(max_iterations, float(error.max()), tolerance)
    return log_kernel.add_(f.unsqueeze(2)).add_(g.unsqueeze(1)).exp_().reshape(shape)


def _potential(log_marginal: torch.Tensor, log_mass: torch.Tensor) -> torch.Tensor:
    """Return the log factor that scales the mass to the marginal; 0 where there is no mass."""
    return torch.where(log_marginal > -torch.inf, log_marginal - log_mass, 0.0)


def _check_marginals(allowed: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> None:
    """Raise for (B, N, M) problems without a plan, as far as single rows and columns show."""
    if not bool((rows >= 0).all() and (columns >= 0).all()):
        raise ValueError("marginals must not be negative")
    row_total, column_total = rows.sum(dim=1), columns.sum(dim=1)
    slack = _ROUNDING * torch.maximum(row_total, column_total)
    differs = ((row_total - column_total).abs() > slack).nonzero()
    if len(differs):
        first = int(differs[0])
        raise InfeasibleError(
            f"no transport plan exists{_where(first, len(rows))}: the rows hold "
            f"{row_total[first]:.6g} and the columns {column_total[first]:.6g}"
        )
    of_rows, of_columns = torch.empty_like(rows), torch.zeros_like(columns)
    for block in row_blocks(rows.shape[1], columns.numel()):
        room = allowed[:, block].to(rows.dtype)
        of_rows[:, block] = (room @ columns.unsqueeze(2)).squeeze(2)
        of_columns += (rows[:, block].unsqueeze(1) @ room).squeeze(1)
    for name, other, mass, capacity in (
        ("row", "columns", rows, of_rows),
        ("column", "rows", columns, of_columns),
    ):
        exceeds = (mass > capacity + slack.unsqueeze(1)).nonzero()
        if len(exceeds):
            problem, index = exceeds[0].tolist()
            holds = f"{name} {index} holds {mass[problem, index]:.6g}"
            held = float(capacity[problem, index])
            raise InfeasibleError(
                f"no transport plan exists{_where(problem, len(rows))}: {holds}, but the mask "
                f"leaves it no {other}"
                if held == 0
                else f"no transport plan exists{_where(problem, len(rows))}: {holds}, but the "
                f"{other} that the mask leaves it hold {held:.6g}"
            )


def _check_sets(
    allowed: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, behind: torch.Tensor
) -> None:
    """Raise if the k rows that lag most hold more than all their columns, for any k.

    By Hall's condition this is a proof for any order, which only makes it likely to be found. By
    complement it also covers sets of columns: the other rows then hold too much.
    """
    by_rank = behind.nan_to_num(nan=-torch.inf).argsort(descending=True)
    order = by_rank.cpu().numpy()
    # In NumPy, since not every device has float64.
    mass = rows.cpu().numpy().astype(np.float64)[order].cumsum()
    # A column counts from the first row on that may use it.
    first, used = np.zeros(len(columns), dtype=np.int64), np.zeros(len(columns), dtype=bool)
    for block in row_blocks(*allowed.shape):
        ordered = allowed[by_rank[block]].cpu().numpy()
        new = ordered.any(axis=0) & ~used
        first[new] = (block.start or 0) + ordered.argmax(axis=0)[new]
        used |= new
    joins = np.bincount(
        first[used], columns.cpu().numpy().astype(np.float64)[used], minlength=len(mass)
    )
    excess = mass - joins.cumsum()
    most = int(excess.argmax())
    if excess[most] > _PROOF * mass[-1]:
        names = sorted(order[: most + 1].tolist())
        listed = ", ".join(map(str, names[:5])) + (", ..." if len(names) > 5 else "")
        raise InfeasibleError(
            f"no transport plan exists: {len(names)} rows ({listed}) hold {mass[most]:.6g}, but "
            f"the columns that the mask leaves them hold {mass[most] - excess[most]:.6g}"
        )


def _log_unconverged(iterations: int, error: float, tolerance: float) -> None:
    """Log a warning now and then: a run that never converges would flood the terminal."""
    count = next(_unconverged)
    logger.log(
        logging.WARNING if count & (count - 1) == 0 else logging.DEBUG,
        "transport did not converge in %d iterations: the rows of the plan are off by %.2g of its "
        "mass, where %.2g is the tolerance (%d such plans so far)",
        iterations,
        error,
        tolerance,
        count,
    )


def _where(problem: int, problems: int) -> str:
    return f" for problem {problem}" if problems > 1 else ""
