"""Near-duplicate groups.

By default every member of a group reaches the threshold with the group's representative, its
first member in input order. Groups of connected pairs alone would chain: on a corpus of similar
images a is near b and b near c, until one group spans things that have nothing in common. Among
the representatives no two reach the threshold, so a corpus that keeps one pair of each group has
no near-duplicates left, and nothing was dropped that is not near what was kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ncclean.neighbour_search.chunked import VALUES, DisjointSets, chunks
from ncclean.neighbour_search.list_scanner import places_within
from ncclean.storage.array_files import Arrays, Shapes

# Earlier near-duplicates of a row that are kept in one round of `Leaders`.
MAX_PAIRS = 32


@dataclass(frozen=True)
class Candidates:
    """(c,) members found for queries: ids of both and float32 cosines, in any order."""

    queries: np.ndarray
    ids: np.ndarray
    cosines: np.ndarray

    def __len__(self) -> int:
        return len(self.queries)

    def at(self, chosen: np.ndarray) -> Candidates:
        """The candidate pairs at these places."""
        return Candidates(self.queries[chosen], self.ids[chosen], self.cosines[chosen])

    @classmethod
    def joined(cls, several: list[Candidates]) -> Candidates:
        if not several:
            return cls(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))
        names = ("queries", "ids", "cosines")
        return cls(*(np.concatenate([getattr(one, name) for one in several]) for name in names))


@dataclass
class PairBuffer(ABC):
    """Gathers near-duplicate pairs, and drops those that cannot count before they are too many."""

    buffered: ClassVar[int] = 4_000_000
    _held: list[Candidates] = field(default_factory=list, kw_only=True)
    _count: int = field(default=0, kw_only=True)

    def add(self, candidates: Candidates) -> None:
        self._held.append(candidates)
        self._count += len(candidates)
        if self._count > self.buffered:
            self._held = [self.result()]
            self._count = len(self._held[0])

    def result(self) -> Candidates:
        """The candidate pairs left of all that were added."""
        return self.reduced(Candidates.joined(self._held))

    @abstractmethod
    def reduced(self, candidates: Candidates) -> Candidates:
        """The candidate pairs that still matter; reducing them again changes nothing."""

    def cut(self) -> np.ndarray:
        """Rows some of whose candidate pairs were dropped."""
        return np.empty(0, np.int32)


@dataclass
class FirstPairs(PairBuffer):
    """Keeps the first `keep` earlier rows of each row; `by_similarity` the most similar ones."""

    keep: int
    by_similarity: bool
    _cut: list[np.ndarray] = field(default_factory=list)

    def reduced(self, candidates: Candidates) -> Candidates:
        """The candidate pairs kept, by the later row of each."""
        keys = -candidates.cosines if self.by_similarity else candidates.ids
        candidates = candidates.at(np.lexsort((candidates.ids, keys, candidates.queries)))
        rank = ranks(candidates.queries)
        self._cut.append(np.unique(candidates.queries[rank >= self.keep]))
        return candidates.at(rank < self.keep)

    def cut(self) -> np.ndarray:
        return np.unique(np.concatenate(self._cut)) if self._cut else np.empty(0, np.int32)


class SpanningForest(PairBuffer):
    """Keeps as many pairs as connect the same rows: none that matters is dropped."""

    def add(self, candidates: Candidates) -> None:
        super().add(spanning(candidates))

    def reduced(self, candidates: Candidates) -> Candidates:
        return spanning(candidates)


def spanning(pairs: Candidates) -> Candidates:
    """Reduce pairs to a spanning forest: each row with the first row that it is connected to."""
    if not len(pairs):
        return pairs
    rows, inverse = np.unique(np.concatenate([pairs.queries, pairs.ids]), return_inverse=True)
    later, earlier = inverse[: len(pairs)], inverse[len(pairs) :]
    sets = DisjointSets(first := np.empty(len(rows), np.int32))
    sets.join(later, earlier)
    sets.finish()
    first = rows[first]
    joined = np.flatnonzero(first != rows)
    return Candidates(rows[joined], first[joined], np.ones(len(joined), np.float32))


class Leaders:
    """Groups by representative (leader clustering), decided in rounds.

    Rows are taken in order: one joins the most similar representative before it that it is a
    near-duplicate of, and else becomes one. Where a row's pairs were cut and none of those that are
    left is of a representative, it stays open, and so do rows that depend on it: `search` names the
    rows to compare in the next round.

    The (u,) arrays of `Leaders.shapes` are written to, and may be mapped files: `queries` and
    `members` are which rows to compare in the next round, and with which.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.representative, self._is_open, self._was_cut, self.queries, self.members = (
            arrays[name] for name in self.shapes(0)
        )
        for rows in chunks(len(self.representative), VALUES):
            self.representative[rows] = np.arange(rows.start, rows.stop)
            self._is_open[rows] = True

    @staticmethod
    def shapes(count: int) -> Shapes:
        """Shapes and types of the arrays that hold the representatives of so many rows."""
        flags = ((count,), np.bool_)
        return {
            "representative": ((count,), np.int32), "is_open": flags, "was_cut": flags,
            "queries": flags, "members": flags,
        }  # fmt: skip

    def decide(self, rows: slice, pairs: Candidates, cut: np.ndarray) -> None:
        """Decide which rows of a round represent others, by candidate pairs sorted by later row."""
        is_cut = np.zeros(rows.stop - rows.start, dtype=bool)
        is_cut[cut - rows.start] = True
        has_pairs = np.zeros(rows.stop - rows.start, dtype=bool)
        has_pairs[pairs.queries - rows.start] = True
        self._is_open[rows] &= has_pairs  # without an earlier near-duplicate, a row is its own
        self._was_cut[rows] |= is_cut
        starts = np.flatnonzero(np.diff(pairs.queries, prepend=-1))
        for begin, end in zip(starts, np.append(starts, len(pairs))[1:], strict=True):
            row = int(pairs.queries[begin])
            if not self._is_open[row]:
                continue
            earlier = pairs.ids[begin:end]
            is_open = self._is_open[earlier]
            stands = (self.representative[earlier] == earlier) & ~is_open
            if stands.any():
                best = np.where(stands, pairs.cosines[begin:end], -np.inf).argmax()
                self.representative[row] = earlier[best]
                self._is_open[row] = False
                self._was_cut[row] |= is_open.any()  # one of them may come to be nearer
            elif not is_cut[row - rows.start] and not is_open.any():
                self._is_open[row] = False

    def search(self) -> bool:
        """Write the rows to compare in the next round; False if every row is decided.

        The rest are representatives, with which an open row is compared, and their members.
        """
        return self._ask(lambda rows, stands: (self._is_open[rows], self._is_open[rows] | stands))

    def search_nearest(self) -> bool:
        """Write the rows whose most similar representative may be among dropped candidates."""
        return self._ask(lambda rows, stands: (self._was_cut[rows] & ~stands, stands))

    def move(self, pairs: Candidates) -> None:
        """Move rows to the most similar representatives that a search has found."""
        self.representative[pairs.queries] = pairs.ids

    def _ask(self, choose: Callable[[slice, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> bool:
        is_any = False
        for rows in chunks(len(self.representative), VALUES):
            stands = self.representative[rows] == np.arange(rows.start, rows.stop)
            self.queries[rows], self.members[rows] = choose(rows, stands)
            is_any |= bool(self.queries[rows].any())
        return is_any


def join_single_rows(
    representative: np.ndarray, sizes: np.ndarray, queries: np.ndarray, near: Sequence[np.ndarray]
) -> None:
    """Add rows without near-duplicates to a group that they are near in another space.

    `representative` (u,) is written to; `sizes` (u,) are those of the groups before. `queries` (q,)
    are ascending rows, and `near` the rows that each is a near-duplicate of there, most similar
    first. A row joins the first before it that is a representative, so every member still is near
    the first of its group.
    """
    for row, others in zip(queries.tolist(), near, strict=True):
        if sizes[representative[row]] > 1:
            continue
        for other in others.tolist():
            if other < row and representative[other] == other:
                representative[row] = other
                break


def ranks(queries: np.ndarray) -> np.ndarray:
    """(c,) number of equal values before each of (c,) sorted values."""
    return places_within(np.unique(queries, return_counts=True)[1])
