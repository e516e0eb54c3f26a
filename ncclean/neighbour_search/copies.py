"""Which rows of a corpus are repetitions.

The web repeats captions thousands of times. A search over all rows would return nothing but
copies, so searches run over distinct rows, and a hash finds every copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ncclean.neighbour_search.chunked import (
    VALUES,
    DisjointSets,
    Keys,
    add_counts,
    chunks,
    exclusive_sums,
    first_rows,
    take_places,
)
from ncclean.neighbour_search.stages import Stages
from ncclean.storage.array_files import Shapes


@dataclass(frozen=True)
class Distinct:
    """A partition of n rows into u classes of equal ones, numbered by first occurrence.

    `labels` (n,) is the class of each row, `first` (u,) the first row of each class, `members`
    (n,) all rows sorted by class and then by row, `starts` (u + 1,) where each class begins there,
    `positions` (n,) the place of each row among the members of its class, from 0.
    """

    labels: np.ndarray
    first: np.ndarray
    members: np.ndarray
    starts: np.ndarray
    positions: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Distinct:
        """Load a partition of rows into classes of equal ones from a file's arrays."""
        return cls(*(arrays[field.name] for field in fields(cls)))

    @staticmethod
    def shapes(rows: int, classes: int) -> Shapes:
        """Shapes and types of the arrays that hold a partition of rows."""
        return {
            "labels": ((rows,), np.int32), "first": ((classes,), np.int32),
            "members": ((rows,), np.int32), "starts": ((classes + 1,), np.int64),
            "positions": ((rows,), np.int32),
        }  # fmt: skip

    def fill(self, first: np.ndarray) -> None:
        """Write a partition of rows, from the (n,) first row that equals each."""
        classes = 0
        for rows in chunks(len(first), VALUES):
            new = np.flatnonzero(first[rows] == np.arange(rows.start, rows.stop)) + rows.start
            self.labels[new] = np.arange(classes, classes + len(new))
            self.first[classes : classes + len(new)] = new
            self.labels[rows] = self.labels[first[rows]]
            classes += len(new)
        # The place of the next member of each class, which is the end of the class at last.
        next_place = self.starts[1:]
        add_counts(next_place, self.labels)
        exclusive_sums(next_place, next_place)
        for rows in chunks(len(first), VALUES):
            places = take_places(self.labels[rows], next_place)
            self.members[places] = np.arange(rows.start, rows.stop)
            self.positions[rows] = places
        for rows in chunks(len(first), VALUES):
            self.positions[rows] -= self.starts[self.labels[rows]]


def write_classes(stages: Stages, name: str, keys: Sequence[Keys], count: int) -> Distinct:
    """Write which of `count` rows are equal, that is, share any of several keys."""
    if not stages.has(name):
        shape = (count,), np.int32
        with stages.work.scratch({"first": shape, "parent": shape}) as scratch:
            first, parent = scratch["first"], scratch["parent"]
            sets = DisjointSets(parent)
            for one in keys:
                first_rows(stages.work, one, first)
                for rows in chunks(count, VALUES):
                    sets.join(np.arange(rows.start, rows.stop), first[rows])
            sets.finish()
            classes = sum(
                int(np.count_nonzero(parent[rows] == np.arange(rows.start, rows.stop)))
                for rows in chunks(count, VALUES)
            )
            with stages.writing(name, Distinct.shapes(count, classes)) as arrays:
                Distinct.of(arrays).fill(parent)
    return Distinct.of(stages.work.load(name))


def vector_digests(vectors: np.ndarray) -> np.ndarray:
    """Hash (m, d) float16 rows to 128 bits each, (m, 2) uint64."""
    return digests(row.tobytes() for row in np.ascontiguousarray(vectors))


def caption_digests(captions: Iterable[str | None]) -> np.ndarray:
    """Hash captions to 128 bits each, (m, 2) uint64; zeros for a missing caption.

    Captions are compared as CLIP's tokenizer sees them, in lower case and with white space
    collapsed: their embeddings differ by rounding alone, which depends on the batch they were in.
    """
    return digests(
        None if caption is None else b"c" + " ".join(caption.lower().split()).encode()
        for caption in captions
    )


def digests(contents: Iterable[bytes | None]) -> np.ndarray:
    """Hash texts to 128 bits each, (m, 2) uint64; zeros for None."""
    nothing = bytes(16)
    joined = b"".join(
        nothing if content is None else hashlib.blake2b(content, digest_size=16).digest()
        for content in contents
    )
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)
