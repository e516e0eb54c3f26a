"""Causes as people and programs read them: rates, excess, conditions and examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import duckdb
import numpy as np

from ncclean.estimates import UNKNOWN, Estimate
from ncclean.explaining.aggregates import Totals
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.cause_table import Cause, Example
from ncclean.explaining.folding import Folded
from ncclean.explaining.group_rate import BINS, bin_sql, rate_of
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.outcomes import NEAR_MISS
from ncclean.explaining.pairs_file import Values

_LONGEST = 2000  # characters of a caption


def described(
    connection: duckdb.DuckDBPyConnection,
    candidates: Sequence[Candidate],
    group_of: Sequence[int],
    folded: Folded,
    values: Values,
    totals: Totals,
    options: ExplainOptions,
    clusters: str | None,
    proposals: Mapping[int, str],
) -> list[Cause]:
    """Describe the causes, the largest excess first, and then the groups folded into them.

    `group_of` is the number of each candidate's group in the view `members`, `proposals` are by
    number of the candidate.
    """
    names = values.names()
    overall = totals.sums.sum(axis=1) / max(totals.pairs.sum(), 1)
    cleared = folded.cleared.sums.sum(axis=1) / max(folded.cleared.pairs.sum(), 1)
    histograms = _histograms(connection, values, max(group_of, default=-1) + 1)
    facts = []
    for number, candidate in enumerate(candidates):
        column = names.index(values.of(candidate.outcome))
        counts = histograms[candidate.outcome][group_of[number]]
        rate = candidate.rate or rate_of(counts, overall[column], candidate.tau2[0])
        name, outside = values.outcomes[candidate.outcome].name, UNKNOWN
        if candidate.rate is None or name == NEAR_MISS:
            outside = share_outside(float(cleared[column]), folded.cleared.pairs.sum())
        else:  # exchanged words, in a table that tells no near misses
            name = NEAR_MISS
        facts.append((int(counts.sum()), rate, outside, name))
    excess = [
        pairs * (rate.least - (outside.value if outside.is_known else 0.0))
        for pairs, rate, outside, _ in facts
    ]
    order = sorted(folded.causes, key=lambda one: -excess[one])
    places = {cause: place for place, cause in enumerate(order, start=1)}
    rest = sorted(folded.into, key=lambda one: (places[folded.into[one]], -excess[one]))
    causes = []
    for place, number in enumerate([*order, *rest], start=1):
        candidate = candidates[number]
        pairs, rate, outside, name = facts[number]
        is_cause = number in places
        causes.append(
            Cause(
                number=place,
                folded_into=None if is_cause else places[folded.into[number]],
                kind=candidate.kind.name,
                value=candidate.value,
                label=candidate.kind.label(candidate.value),
                outcome=name,
                pairs=pairs,
                rate=rate,
                outside=outside,
                excess=excess[number],
                q_value=candidate.q_value,
                condition=candidate.kind.condition(candidate.value),
                join=clusters if {"cluster", "region"} & set(candidate.kind.columns) else None,
                proposal=proposals.get(number),
                examples=_examples(
                    connection, group_of[number], values.of(candidate.outcome), options.examples
                )
                if is_cause and options.examples
                else (),
            )
        )
    return causes


def share_outside(rate: float, pairs: float) -> Estimate:
    """The share elsewhere with Wilson's 95 % interval, which has a width even at 0 and 1."""
    doubt = 1.96**2 / max(pairs, 1)
    centre = (rate + doubt / 2) / (1 + doubt)
    half = math.sqrt(doubt * (rate * (1 - rate) + doubt / 4)) / (1 + doubt)
    return Estimate(rate, max(min(centre - half, rate), 0.0), min(max(centre + half, rate), 1.0))


def _histograms(
    connection: duckdb.DuckDBPyConnection, values: Values, groups: int
) -> list[np.ndarray]:
    """(G, BINS) pairs of each group by the log odds of an outcome's value, by outcome."""
    histograms = []
    for number in range(len(values.outcomes)):
        counts = np.zeros((groups, BINS))
        rows = connection.execute(
            f"SELECT member, {bin_sql(values.of(number) + '::DOUBLE')} AS bin, count(*) "
            "FROM members JOIN pairs USING (place) GROUP BY 1, 2"
        ).fetchall()
        for member, place, count in rows:
            counts[member, place] = count
        histograms.append(counts)
    return histograms


def _examples(
    connection: duckdb.DuckDBPyConnection, group: int, value: str, count: int
) -> tuple[Example, ...]:
    """Pairs of the group that are probably wrong, in no particular order among those."""
    places = connection.execute(
        f"SELECT arg_max(place, round({value}, 1) + (hash(place) % 1000) / 20000, {count}) "
        f"FROM members JOIN pairs USING (place) WHERE member = {group}"
    ).fetchall()[0][0]
    columns = {row[0] for row in connection.execute("DESCRIBE pairs").fetchall()}
    selected = ", ".join(
        name if name in columns else f"NULL AS {name}"
        for name in ("uid", "shard", "key", "row", "caption_number")
    )
    text = f"left(text, {_LONGEST})" if "text" in columns else "NULL"
    listed = ", ".join(map(str, map(int, places or ()))) or "NULL"
    rows = connection.execute(
        f"SELECT {selected}, {text}, {value} FROM pairs WHERE place IN ({listed}) "
        f"ORDER BY {value} DESC, place"
    ).fetchall()
    return tuple(
        Example(uid, str(shard), key, int(row), int(number or 0), caption, float(probability))
        for uid, shard, key, row, number, caption, probability in rows
    )
