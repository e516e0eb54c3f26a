"""Which rows of a corpus are repetitions.

The web repeats captions thousands of times. A search over all rows would return nothing but
copies, so searches run over distinct rows, and a hash finds every copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ncclean.scoring.neighbours.matrix import EmbeddingMatrix


@dataclass(frozen=True)
class Distinct:
    """A partition of n rows into u classes of equal ones, numbered by first occurrence.

    `labels` (n,) is the class of each row, `first` (u,) the first row of each class, `members`
    (n,) all rows sorted by class and then by row, `starts` (u + 1,) where each class begins there.
    """

    labels: np.ndarray
    first: np.ndarray
    members: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    @property
    def sizes(self) -> np.ndarray:
        """(u,) number of rows of each class."""
        return np.diff(self.starts)

    @property
    def positions(self) -> np.ndarray:
        """(n,) place of each row among the members of its class, from 0."""
        positions = np.empty(len(self.labels), dtype=np.int64)
        positions[self.members] = np.arange(len(self.labels))
        within: np.ndarray = positions - self.starts[self.labels]
        return within

    @classmethod
    def of(cls, labels: np.ndarray) -> Distinct:
        """From any (n,) integer labels; they are renumbered by first occurrence."""
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        renumbered = rank[inverse.reshape(-1)]
        members = np.argsort(renumbered, kind="stable")
        starts = np.concatenate(([0], np.cumsum(np.bincount(renumbered, minlength=len(order)))))
        return cls(renumbered, first[order], members, starts)


def distinct_rows(
    matrix: EmbeddingMatrix, captions: Sequence[str | None] | None = None
) -> Distinct:
    """Classes of rows with equal embeddings, or with equal captions if there are captions.

    Captions are compared as CLIP's tokenizer sees them, in lower case and with white space
    collapsed: their embeddings differ by rounding alone, which depends on the batch they were in.
    """
    by_embedding = _numbered(
        hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        for _, rows in matrix.chunks()
        for row in rows
    )
    if captions is None:
        return Distinct.of(by_embedding)
    keys = (
        number if caption is None else " ".join(caption.lower().split())
        for number, caption in zip(by_embedding.tolist(), captions, strict=True)
    )
    return Distinct.of(_joined(by_embedding, _numbered(keys)))


def _numbered(keys: Iterable[Hashable]) -> np.ndarray:
    """Equal keys to equal numbers."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _joined(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The finest partition that is coarser than both (n,) partitions."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    offset = int(left.max(initial=-1)) + 1
    total = offset + int(right.max(initial=-1)) + 1
    ones = np.ones(len(left), dtype=np.int8)
    graph = coo_array((ones, (left, right + offset)), shape=(total, total))
    _, component = connected_components(graph, directed=False)
    return np.asarray(component[left], dtype=np.int64)
