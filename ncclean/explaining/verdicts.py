"""Decide whether a group that stands out has more wrong pairs, or the estimator is worse there.

With embeddings, mismatches are judged by the group's own null, and other outcomes by how well the
estimator separates its pairs from mismatches. Without them, the pairs of the group must look like a
mixture of right and wrong pairs elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import duckdb
import numpy as np

from ncclean.base.estimates import Estimate
from ncclean.explaining.aggregates import Totals
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.discoveries import log_threshold, q_values
from ncclean.explaining.group_rate import BINS, bin_sql, fits, rate_of
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.outcomes import MISMATCH
from ncclean.explaining.own_null import NOT_KNOWN, OwnNulls, Verdict
from ncclean.explaining.pairs import Values

# Near misses and wrong sentences have no group mismatches. Their evidence counts if the estimator
# separates right pairs of the group from mismatches this well.
_LEAST_SEPARATION = 0.95


@dataclass(frozen=True)
class Verdicts:
    """Decides which candidates are causes, and where the estimator may only be worse.

    Candidates are named by number; `group_of` is the number of each one's group. `tested` is the
    total number of tested groups. `nulls` judges groups by their own known mismatches, None without
    embeddings. `counts` has, for each outcome, (K + 1, BINS) numbers of pairs by log odds, of each
    group and last of all pairs.
    """

    candidates: Sequence[Candidate]
    group_of: Sequence[int]
    values: Values
    totals: Totals
    options: ExplainOptions
    tested: int
    counts: Sequence[np.ndarray]
    nulls: OwnNulls | None
    _known: dict[tuple[int, ...], Verdict] = field(default_factory=dict)

    def is_cause(self, number: int, causes: Sequence[int]) -> bool:
        """Check whether more pairs are wrong in a group, without its pairs in the `causes`."""
        verdict = self._verdict(number, causes)
        if verdict is None:
            counts = self.counts[self.candidates[number].outcome]
            of_group = counts[self.group_of[number]]
            return fits(of_group, counts[-1] - of_group, self._overall(number))
        if not self._is_mismatch(number):
            return verdict.separation >= _LEAST_SEPARATION
        excess = verdict.rate.value - verdict.outside.value
        # Of a single test: the others' results are known for the strongest only.
        limit = log_threshold(np.array([-np.inf]), self.tested, self.options.false_discoveries)
        return verdict.log_p <= limit and excess >= self.options.min_excess

    def rate(self, number: int, is_listed: bool, is_cause: bool) -> Estimate:
        """Return a group's share of wrong pairs; not known for a group that is no cause.

        A group that is listed (not folded into another) has the share by its own null, if there are
        embeddings. Others need `is_cause`, or to be folded into a cause.
        """
        verdict = self._verdict(number, ()) if is_listed and self._is_mismatch(number) else None
        if verdict is not None:
            return verdict.rate
        if not is_cause:
            return NOT_KNOWN
        candidate = self.candidates[number]
        counts = self.counts[candidate.outcome][self.group_of[number]]
        return candidate.rate or rate_of(counts, self._overall(number), candidate.tau2[0])

    def outside(self, number: int, listed: Sequence[int]) -> Estimate | None:
        """Return the share of wrong pairs outside the `listed` groups; None without their null."""
        if self.nulls is None or not self._is_mismatch(number):
            return None
        return self.nulls.outside([self.group_of[one] for one in listed])

    def q_value(self, number: int, is_listed: bool) -> float:
        """Return the false discovery rate at which a group becomes a discovery.

        For a listed group with a null of its own, the larger of its two rates.
        """
        candidate = self.candidates[number]
        verdict = self._verdict(number, ()) if is_listed and self._is_mismatch(number) else None
        if verdict is None:
            return candidate.q_value
        return max(candidate.q_value, float(q_values(np.array([verdict.log_p]), self.tested)[0]))

    def _overall(self, number: int) -> float:
        column = self.values.names().index(self.values.of(self.candidates[number].outcome))
        return float(self.totals.sums[column].sum() / max(self.totals.pairs.sum(), 1))

    def _is_mismatch(self, number: int) -> bool:
        candidate = self.candidates[number]
        is_mismatch = self.values.outcomes[candidate.outcome].name == MISMATCH
        return is_mismatch and candidate.rate is None

    def _verdict(self, number: int, causes: Sequence[int]) -> Verdict | None:
        if self.nulls is None:
            return None
        key = (number, *causes)
        if key not in self._known:
            self._known[key] = self.nulls.verdict(
                self.group_of[number],
                self.candidates[number].kind.made_of,
                [self.group_of[cause] for cause in causes],
            )
        return self._known[key]


def histograms(
    connection: duckdb.DuckDBPyConnection, values: Values, groups: int
) -> list[np.ndarray]:
    """Count pairs by group and log odds of being wrong; return (K + 1, BINS) for each outcome.

    The last row counts all pairs. The bins are those of `ncclean.explaining.group_rate.bin_sql`.
    """
    by_outcome = []
    for value in values.own():
        counts = np.zeros((groups + 1, BINS))
        rows = connection.execute(
            f"SELECT member, {bin_sql(value + '::DOUBLE')} AS bin, count(*) FROM "
            f"(SELECT place, member FROM members UNION ALL SELECT place, {groups} FROM pairs) "
            "JOIN pairs USING (place) GROUP BY 1, 2"
        ).fetchall()
        for member, place, count in rows:
            counts[member, place] = count
        by_outcome.append(counts)
    return by_outcome
