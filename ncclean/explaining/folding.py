"""Reduce groups that stand out to causes: fold in what another group explains.

A host whose captions are wrong makes the words of its captions stand out, its shards and the
folders of its urls. The group that stands out most is a cause. Its pairs are then set aside, and
the others tested again among the remaining pairs: groups that no longer stand out are folded into
the cause that shares most pairs with them. This repeats until nothing stands out.

Groups where the estimator may only be worse set no pairs aside until all causes are known. Those
that still stand out then are unsure, and are folded in the same way.

Pairs in the same groups have one pattern. Only the sums by pattern are needed, so the number of
pairs does not matter, and no pair is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

from ncclean.explaining.aggregates import STRATA, Totals
from ncclean.explaining.candidates import Candidate, compares_lengths, excess_tests
from ncclean.explaining.kinds import Kind
from ncclean.explaining.options import ExplainOptions

# Groups of nearly the same pairs, of which the preferred kind counts.
_SAME = 0.9
# The share of a cause's pairs that must be in no stronger cause.
_LEAST_OWN = 1 / 3


@dataclass(frozen=True)
class Patterns:
    """Pairs summed by pattern: the set of groups a pair is in, and its stratum of caption length.

    For P patterns and K groups, `members` (P, K) tells which groups each pattern is in; `strata`
    (P,) and `pairs` (P,) are its stratum and number of pairs, `sums` (V, P) sums V values. `totals`
    are those of all pairs, in groups or not.
    """

    members: csr_matrix
    strata: np.ndarray
    pairs: np.ndarray
    sums: np.ndarray
    totals: Totals

    def has(self, group: int) -> np.ndarray:
        """Return (P,) bool: whether the pairs of each pattern are in a group."""
        is_member: np.ndarray = np.asarray(self.members[:, group].todense()).ravel() != 0
        return is_member

    def of_groups(self, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (K, S) pairs and (V, K, S) sums of the groups, over some of the patterns.

        `left` (P,) bool selects the patterns.
        """
        groups = self.members.shape[1]
        counts = np.zeros((groups, STRATA))
        sums = np.zeros((len(self.sums), groups, STRATA))
        for stratum in range(STRATA):
            rows = np.flatnonzero(left & (self.strata == stratum))
            if len(rows):
                part = self.members[rows].T
                counts[:, stratum] = part @ self.pairs[rows]
                sums[:, :, stratum] = (part @ self.sums[:, rows].T).T
        return counts, sums

    def without(self, left: np.ndarray) -> Totals:
        """Return the totals without the pairs of patterns outside `left` (P,) bool."""
        gone = ~left
        pairs = np.bincount(self.strata[gone], self.pairs[gone], STRATA)
        sums = np.stack([np.bincount(self.strata[gone], row[gone], STRATA) for row in self.sums])
        counts = self.totals.pairs - pairs
        # Squares are only for the variance, which is assumed to stay.
        squares = self.totals.squares * counts / np.maximum(self.totals.pairs, 1)
        return Totals(counts, self.totals.sums - sums, squares, self.totals.shown)


@dataclass(frozen=True)
class Folded:
    """Candidates sorted into causes, unsure groups, and groups folded into one of these.

    All are named by number. `into` maps a folded group to the one it shares most pairs with.
    `cleared` are the totals of the pairs in no cause and no unsure group.
    """

    causes: list[int]
    unsure: list[int]
    into: dict[int, int]
    cleared: Totals


def fold(
    candidates: Sequence[Candidate],
    group_of: Sequence[int],
    patterns: Patterns,
    options: ExplainOptions,
    log_threshold: float,
    preference: Sequence[str],
    is_cause: Callable[[int, Sequence[int]], bool],
) -> Folded:
    """Choose the causes among candidates: again and again the strongest of the remaining pairs.

    `group_of` is the column of each candidate in the patterns. `preference` lists the names of the
    kinds, the preferred first: it decides among groups of nearly the same pairs. `is_cause` decides
    whether more pairs are wrong in a candidate, apart from its pairs in the causes chosen before;
    if not, the group is unsure.
    """
    whole, _ = patterns.of_groups(np.ones(len(patterns.pairs), bool))
    sizes = whole.sum(axis=1)
    shared = _shared(patterns)
    left = np.ones(len(patterns.pairs), bool)

    def standing(numbers: Sequence[int]) -> dict[int, float]:
        pairs, sums = patterns.of_groups(left)
        totals = patterns.without(left)
        strengths = {
            number: _strength(
                candidates[number], group_of[number], pairs, sums, totals, sizes, options,
                log_threshold,
            )
            for number in numbers
        }  # fmt: skip
        return {number: one for number, one in strengths.items() if one is not None}

    def same_as(strongest: int, numbers: Sequence[int]) -> list[int]:
        place = group_of[strongest]
        same = [
            one
            for one in numbers
            if candidates[one].outcome == candidates[strongest].outcome
            and shared[place, group_of[one]] >= _SAME * max(sizes[place], sizes[group_of[one]])
        ]
        return sorted(same, key=lambda one: (preference.index(candidates[one].kind.name), one))

    def choose(numbers: Sequence[int], accepts: Callable[[int], bool]) -> list[int]:
        """Choose the strongest, set its pairs aside, and repeat; return those not accepted."""
        refused: list[int] = []
        strengths = standing(numbers)
        while strengths:
            strongest = max(strengths, key=lambda one: (strengths[one], -one))
            same = same_as(strongest, list(strengths))
            if accepts(same[0]):
                chosen.append(same[0])
                np.logical_and(left, ~patterns.has(group_of[same[0]]), out=left)
                strengths = standing([one for one in strengths if one != same[0]])
            else:
                refused += same
                strengths = {one: of for one, of in strengths.items() if one not in same}
        return refused

    chosen = [number for number, candidate in enumerate(candidates) if candidate.rate is not None]
    for number in chosen:
        left &= ~patterns.has(group_of[number])
    others = [number for number in range(len(candidates)) if number not in chosen]
    refused = choose(others, lambda number: is_cause(number, chosen))
    count = len(chosen)
    choose(refused, lambda number: True)
    folded_into = {}
    for number in (one for one in range(len(candidates)) if one not in chosen):
        of_chosen = [shared[group_of[number], group_of[one]] for one in chosen]
        if any(of_chosen):  # otherwise it no longer stands out in comparison
            folded_into[number] = chosen[int(np.argmax(of_chosen))]
    return Folded(chosen[:count], chosen[count:], folded_into, patterns.without(left))


def _strength(
    candidate: Candidate,
    group: int,
    pairs: np.ndarray,
    sums: np.ndarray,
    totals: Totals,
    sizes: np.ndarray,
    options: ExplainOptions,
    log_threshold: float,
) -> float | None:
    """Return how much a group stands out among the remaining pairs; None if it does not."""
    count = pairs[group].sum()
    if count < max(options.min_pairs, _LEAST_OWN * sizes[group]):
        return None
    columns = list(candidate.required.columns)
    test = excess_tests(
        pairs[group][None], sums[columns, group][:, None], totals.of(columns), candidate.tau2,
        candidate.required,
        compares_lengths(candidate.kind),
    )  # fmt: skip
    stands_out = test.log_p[0] <= log_threshold
    is_enough = test.mean[0] - test.expected[0] >= options.min_excess
    return float(test.strength[0]) if stands_out and is_enough else None


def _shared(patterns: Patterns) -> np.ndarray:
    """Return (K, K) numbers of pairs that two groups share."""
    weighted = patterns.members.multiply(patterns.pairs[:, None]).tocsr()
    return np.asarray((weighted.T @ patterns.members).todense())


def write_members(
    connection: duckdb.DuckDBPyConnection, groups: Sequence[tuple[Kind, str]]
) -> None:
    """Create the table `members`: the place of every pair in a group, and the group's number."""
    # The hash of a place, as a DOUBLE as before, chooses examples and samples.
    connection.execute("CREATE OR REPLACE TEMP TABLE members (place DOUBLE, member INT)")
    for kind in dict.fromkeys(kind for kind, _ in groups):
        wanted = pa.array([value if of == kind else None for of, value in groups], pa.string())
        connection.register("groups", pa.table({"wanted": wanted, "member": range(len(groups))}))
        value = f"unnest({kind.value})" if kind.several else kind.value
        connection.execute(
            f"INSERT INTO members SELECT place, member FROM (SELECT place, {value} AS value "
            "FROM pairs) JOIN groups ON value = wanted"
        )
        connection.unregister("groups")


def patterns_of(
    connection: duckdb.DuckDBPyConnection, groups: int, values: Sequence[str], totals: Totals
) -> Patterns:
    """Sum the pairs of the view `pairs` by the groups they are in, given by the table `members`."""
    sums = "".join(f", sum({name}::DOUBLE) AS s{n}" for n, name in enumerate(values))
    table = connection.sql(
        "SELECT ids, stratum, count(*) AS pairs"
        f"{sums} FROM (SELECT place, list_sort(list(member)) AS ids FROM members GROUP BY place) "
        "JOIN pairs USING (place) GROUP BY ids, stratum"
    ).to_arrow_table()
    lists = table.column("ids").combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.chunk(0) if lists.num_chunks else pa.array([], pa.list_(pa.int32()))
    columns = np.asarray(lists.flatten())
    ends = np.asarray(lists.offsets)
    ends = ends - (ends[0] if len(ends) else 0)
    if not len(ends):
        ends = np.zeros(1, np.int32)
    members = csr_matrix(
        (np.ones(len(columns)), columns, ends), shape=(len(table), groups), dtype=np.float64
    )
    return Patterns(
        members,
        np.asarray(table.column("stratum")).astype(int),
        np.asarray(table.column("pairs")).astype(float),
        np.stack([np.asarray(table.column(f"s{n}")) for n in range(len(values))]),
        totals,
    )
