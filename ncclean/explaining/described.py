"""Describe causes for people and programs: rates, excess, conditions and examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from ncclean.base.estimates import UNKNOWN, Estimate
from ncclean.data.languages import foreign_language
from ncclean.explaining.cause_table import Cause, Example
from ncclean.explaining.folding import Folded
from ncclean.explaining.outcomes import NEAR_MISS
from ncclean.explaining.verdicts import Verdicts
from ncclean.storage.catalog import columns_of

_LONGEST = 2000  # characters of a caption


def described(
    connection: duckdb.DuckDBPyConnection,
    folded: Folded,
    verdicts: Verdicts,
    clusters: str | None,
    proposals: Mapping[int, str],
) -> list[Cause]:
    """Return the rows of the table of causes.

    These are the causes, the largest excess first, then unsure groups, then those folded into
    either. A cause is dropped if its share of wrong pairs turns out to be less than `--min-excess`
    above that of the pairs in no group. `proposals` are texts by number of the candidate.
    """
    values, options = verdicts.values, verdicts.options
    names = values.names()
    cleared = folded.cleared.sums.sum(axis=1) / max(folded.cleared.pairs.sum(), 1)
    listed = [*folded.causes, *folded.unsure]
    facts: dict[int, _Facts] = {}
    for number in (*listed, *folded.into):
        candidate = verdicts.candidates[number]
        of_group = folded.into.get(number, number)
        column = names.index(values.of(candidate.outcome))
        outcome, outside = values.outcomes[candidate.outcome].name, UNKNOWN
        if candidate.rate is None or outcome == NEAR_MISS:
            outside = verdicts.outside(number, listed) or share_outside(
                float(cleared[column]), folded.cleared.pairs.sum()
            )
        else:  # exchanged words, in a table without near misses
            outcome = NEAR_MISS
        pairs = int(verdicts.counts[candidate.outcome][verdicts.group_of[number]].sum())
        rate = verdicts.rate(number, number in listed, of_group in folded.causes)
        facts[number] = _Facts(pairs, rate, outside, outcome)
    causes = [
        one
        for one in folded.causes
        if not facts[one].rate.is_known
        or facts[one].rate.value - facts[one].outside.value >= options.min_excess
    ]
    order = sorted(causes, key=lambda one: -facts[one].excess)
    order += folded.unsure
    places = {number: place for place, number in enumerate(order, start=1)}
    rest = [number for number in folded.into if folded.into[number] in places]
    rest.sort(key=lambda one: (places[folded.into[one]], -facts[one].pairs))
    described = []
    for place, number in enumerate([*order, *rest], start=1):
        candidate, group = verdicts.candidates[number], verdicts.group_of[number]
        is_listed = number in places
        is_cause = folded.into.get(number, number) in causes
        examples: tuple[Example, ...] = ()
        if is_listed and options.examples:
            examples = _examples(connection, group, values.of(candidate.outcome), options.examples)
        described.append(
            Cause(
                number=place,
                folded_into=None if is_listed else places[folded.into[number]],
                is_cause=is_cause,
                kind=candidate.kind.name,
                value=candidate.value,
                label=candidate.kind.label(candidate.value),
                outcome=facts[number].outcome,
                pairs=facts[number].pairs,
                rate=facts[number].rate,
                outside=facts[number].outside,
                excess=facts[number].excess if is_cause else math.nan,
                q_value=verdicts.q_value(number, is_listed) if is_cause else math.nan,
                condition=candidate.kind.condition(candidate.value),
                join=clusters if {"cluster", "region"} & set(candidate.kind.columns) else None,
                proposal=proposals.get(number) or _in_a_foreign_language(examples),
                examples=examples,
            )
        )
    return described


def _in_a_foreign_language(examples: Sequence[Example]) -> str | None:
    """Say that the captions of a group are in a language that the model may not know."""
    texts = [one.caption for one in examples if one.caption]
    language = foreign_language(texts) if len(texts) > 1 else None
    return language and (
        f"these captions are in the language {language}, which the model may not know: score with "
        "one that knows it, or with --signals language --calibrate-by language, before you drop "
        "them"
    )


@dataclass(frozen=True)
class _Facts:
    """Figures of a group: `excess` is the number of wrong pairs beyond the rate outside."""

    pairs: int
    rate: Estimate
    outside: Estimate
    outcome: str

    @property
    def excess(self) -> float:
        return self.pairs * (self.rate.least - (self.outside.value if self.outside.is_known else 0))


def share_outside(rate: float, pairs: float) -> Estimate:
    """Return a share with Wilson's 95 % interval, which has a width even at 0 and 1."""
    doubt = 1.96**2 / max(pairs, 1)
    centre = (rate + doubt / 2) / (1 + doubt)
    half = math.sqrt(doubt * (rate * (1 - rate) + doubt / 4)) / (1 + doubt)
    return Estimate(rate, max(min(centre - half, rate), 0.0), min(max(centre + half, rate), 1.0))


def _examples(
    connection: duckdb.DuckDBPyConnection, group: int, value: str, count: int
) -> tuple[Example, ...]:
    """Return probably wrong pairs of the group, in no particular order."""
    places = connection.execute(
        f"SELECT arg_max(place, round({value}, 1) + (hash(place) % 1000) / 20000, {count}) "
        f"FROM members JOIN pairs USING (place) WHERE member = {group}"
    ).fetchall()[0][0]
    columns = columns_of(connection, "pairs")
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
