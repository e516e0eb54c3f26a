"""The nearest members of lists, list by list, as matrix products.

A query is compared with its nearest list first. The k-th cosine found there is a floor, which rises
with each list (`rising`): only members that reach it can be among the k nearest, so few cosines
are kept. All of this is exact for the lists visited, and the order is that of cosines, then of ids:
the result depends neither on how lists are divided among tasks nor on the order of the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ncclean.neighbours.list_scanner import Largest
from ncclean.neighbours.matmul import fastest

# Cosines of float32 products that differ by less are ties.
TIE = 1e-6
QUERY_ROWS = 1024
_BLOCK_VALUES = 1 << 25  # 128 MB of products


@dataclass(frozen=True)
class Nearest:
    """For q queries: (q, k) float32 cosines, descending, and int32 ids; -1 where missing."""

    cosines: np.ndarray
    ids: np.ndarray


def nearest_in_list(
    queries: np.ndarray, members: np.ndarray, ids: np.ndarray, k: int, itself: np.ndarray | None
) -> Nearest:
    """The k nearest of (m, d) members with (m,) ids for (q, d) queries.

    `itself` (q,) are the ids of the queries where they are among the members.
    """
    cosines = np.full((len(queries), k), -np.inf, dtype=np.float32)
    near = np.full((len(queries), k), -1, dtype=np.int32)
    count = min(k, len(ids) - (itself is not None))
    width = count + (itself is not None)
    if not width or not len(queries):
        return Nearest(cosines, near)
    largest = Largest(members, fastest(len(queries) * len(ids)))
    for rows in query_blocks(len(queries), len(ids)):
        places, values = largest.of(queries[rows], width)
        if itself is not None:
            is_itself = ids[places] == itself[rows, None]
            at = np.where(is_itself.any(axis=1), is_itself.argmax(axis=1), count)
            columns = np.arange(count)
            others = columns + (columns >= at[:, None])
            places, values = (np.take_along_axis(one, others, axis=1) for one in (places, values))
        cosines[rows, :count], near[rows, :count] = values, ids[places]
    return Nearest(cosines, near)


def query_blocks(queries: int, members: int) -> Iterator[slice]:
    """So many queries at a time that their products with a long list still fit into memory."""
    rows = block_rows(members)
    for start in range(0, queries, rows):
        yield slice(start, start + rows)


def block_rows(members: int) -> int:
    """How many queries are compared with so many members at a time."""
    return min(QUERY_ROWS, max(_BLOCK_VALUES // max(members, 1), 1))


def order_of(numbers: np.ndarray, count: int) -> np.ndarray:
    """The stable order of (n,) numbers below `count`; of 16 bits it takes a tenth of the time."""
    small = np.uint16 if count <= 1 << 16 else np.int64
    return np.argsort(numbers.astype(small, copy=False), kind="stable")


def recall_by_value(cosines: np.ndarray, exact: np.ndarray) -> float:
    """Share of the (q, k) exact neighbours that were found; ties with the k-th count as found."""
    reached = cosines >= exact[:, -1:] - TIE
    return float(reached.sum() / exact.size)
