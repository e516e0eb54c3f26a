"""Which rows of a corpus are repetitions.

The web repeats captions thousands of times. A search over all rows would return nothing but
copies, so searches run over distinct rows, and a hash finds every copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


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


def vector_digests(vectors: np.ndarray) -> np.ndarray:
    """(m, d) float16 rows -> (m, 2) uint64: 128 bits of each row's hash."""
    return _digests(row.tobytes() for row in np.ascontiguousarray(vectors))


def caption_digests(captions: Iterable[str | None]) -> np.ndarray:
    """(m, 2) uint64 hashes of captions; zeros where there is none.

    Captions are compared as CLIP's tokenizer sees them, in lower case and with white space
    collapsed: their embeddings differ by rounding alone, which depends on the batch they were in.
    """
    return _digests(
        None if caption is None else b"c" + " ".join(caption.lower().split()).encode()
        for caption in captions
    )


def distinct_classes(vectors: np.ndarray, captions: np.ndarray | None = None) -> Distinct:
    """Classes of rows with equal (n, 2) hashes of embeddings, or of captions if there are some."""
    by_embedding = _numbered(vectors)
    if captions is None or not captions.any():
        return Distinct.of(by_embedding)
    has_none: np.ndarray = np.logical_not(captions.any(axis=1))
    keys: np.ndarray = np.where(has_none[:, None], vectors, captions)
    return Distinct.of(_joined(by_embedding, _numbered(keys)))


def _digests(contents: Iterable[bytes | None]) -> np.ndarray:
    nothing = bytes(16)
    joined = b"".join(
        nothing if content is None else hashlib.blake2b(content, digest_size=16).digest()
        for content in contents
    )
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


def _numbered(keys: np.ndarray) -> np.ndarray:
    """(n, 2) equal keys to equal numbers."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    is_new = np.zeros(len(keys), dtype=bool)
    np.any(np.not_equal(ordered[1:], ordered[:-1]), axis=1, out=is_new[1:])
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[order] = np.cumsum(is_new)
    return numbers


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
