"""Norms and products of embeddings without autocast rounding, by blocks of rows if large.

A logit is a cosine times up to 100: rounded to bfloat16 it is off by a third and more. The losses
are a small part of a step, so they always compute norms and products in float32 or better.

At N = 32,768 one (N, N) matrix of float32 takes 4.3 GB, and autograd would keep five to twelve of
them. A block of rows is recomputed in the backward pass, so none of its matrices is kept. The
products then come in another order: equal up to rounding. Sums over columns are computed as rows of
the transposed problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")

# Values of a matrix that is computed whole: 256 MB in float32, N = 8192.
WHOLE = 1 << 26
# Values of a block of a larger one; a loss has up to ten matrices of that size at a time.
BLOCK = 1 << 24
ALL = slice(None)


def normalized(features: torch.Tensor) -> torch.Tensor:
    """Return (N, d) features of a tower scaled to unit length, in float32 or better."""
    precise = features.to(torch.promote_types(features.dtype, torch.float32))
    with torch.autocast(features.device.type, enabled=False):
        return F.normalize(precise, dim=-1)


def cosines(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return (N, M) cosines of (N, d) and (M, d) L2-normalised embeddings, in float32 or better."""
    first, second = precise(first, second)
    with torch.autocast(first.device.type, enabled=False):
        return first @ second.T


def paired_cosines(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return (N,) cosines of the pairs of (N, d) and (N, d) L2-normalised embeddings."""
    first, second = precise(first, second)
    return (first * second).sum(dim=1)


def precise(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast two tensors to one precision, float32 or better."""
    dtype = torch.promote_types(torch.promote_types(first.dtype, second.dtype), torch.float32)
    return first.to(dtype), second.to(dtype)


def row_blocks(count: int, columns: int, rows: slice = ALL) -> list[slice]:
    """Yield slices of consecutive rows of a (count, columns) matrix, small enough for memory.

    Yields `rows` itself if they have at most `WHOLE` values, else blocks of at most `BLOCK` values,
    or one row.
    """
    first_row, end, _ = rows.indices(count)
    if (end - first_row) * columns <= WHOLE:
        return [rows]
    step = max(1, BLOCK // columns)
    return [slice(start, min(start + step, end)) for start in range(first_row, end, step)]


def by_rows(function: Callable[[slice], Result], pairs: int, rows: slice = ALL) -> list[Result]:
    """Call a function on each block of rows of a (pairs, pairs) matrix; recompute it in backward.

    It may be called twice for a block and must then return the same: its draws need their own
    generator.
    """
    blocks = row_blocks(pairs, pairs, rows)
    if len(blocks) == 1:
        return [function(blocks[0])]
    return [
        checkpoint(function, block, use_reentrant=False, preserve_rng_state=False)
        for block in blocks
    ]


def row_cosines(first: torch.Tensor, second: torch.Tensor, rows: slice) -> torch.Tensor:
    """Return (R, M) cosines of some rows of (N, d) L2-normalised embeddings with (M, d) others."""
    # A view of all rows would add up the gradients in another order.
    return cosines(first if rows == ALL else first[rows], second)


def both_ways(
    first: torch.Tensor, second: torch.Tensor, rows: slice, scale: torch.Tensor | float = 1.0
) -> Iterator[torch.Tensor]:
    """Return (R, N) rows of scaled cosines in both directions, from (N, d) L2-normalised pairs.

    S has the cosines of `first` with `second`. For all rows, the second result is a view of the
    first. The diagonal of S begins in column `rows.start`.
    """
    if rows == ALL:
        scaled = scale * cosines(first, second)
        yield scaled
        yield scaled.T
    else:
        yield scale * row_cosines(first, second, rows)
        yield scale * row_cosines(second, first, rows)


def own_and_all(
    image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor | float
) -> torch.Tensor:
    """Return (2, 2, N): own logit and logsumexp of all, of each pair in both directions.

    The first index is the direction, image to text and text to image; the second has the own
    logits, then the logsumexps of the logits of all candidates.
    """

    def of(rows: slice) -> torch.Tensor:
        return torch.stack(
            [
                torch.stack([logits.diagonal(rows.start or 0), logits.logsumexp(dim=1)])
                for logits in both_ways(image, text, rows, scale)
            ]
        )

    joined: torch.Tensor = torch.cat(by_rows(of, len(image)), dim=2)
    return joined


def mean_or_zero(values: torch.Tensor) -> torch.Tensor:
    """Return the mean of (N,) values; a zero attached to the graph if there are none."""
    return values.sum() / max(1, len(values))
