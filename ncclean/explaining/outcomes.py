"""Kinds of errors of a pair: columns with the probability, and evidence for each.

The probability is high if the pair is wrong, and also if scores of its kind are low for another
reason. Each piece of evidence is blind to one such reason:

- `near_miss_probability` has two parts. That of the whole cosine is low for dark images and odd
  captions; the margin to the best other word is not.
- `part_noise_probability`: the gap between the worst part and the mean of all does not depend on
  what all parts have in common.

`noise_probability` has none: ranks in the block come from the same cosines. A group's own null
decides (`ncclean.explaining.own_null`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Evidence:
    """A number that is higher or lower for wrong pairs, from another source than their probability.

    `sql` is null where it tells nothing. A number is replaced by the mean probability of the pairs
    with similar numbers. In a group with a cause, the excess of that must be the share `least` of
    what wrong pairs would cause: groups that were made wrong on purpose show .95 or more.
    """

    name: str
    sql: str
    columns: tuple[str, ...]
    least: float = 0.85


@dataclass(frozen=True)
class Outcome:
    """A way in which a pair with status ok may be wrong, such as a mismatch or a wrong word.

    `value` is SQL for its probability, given that it can be wrong in this way at all; `weight` is
    SQL for the probability of that.
    """

    name: str
    columns: tuple[str, ...]
    value: str
    evidence: tuple[Evidence, ...]
    weight: str = "1"


# A wholly mismatched pair has no wrong word or sentence: it counts once.
_MATCHED = "(1 - coalesce(noise_probability, 0))"
MISMATCH, NEAR_MISS = "mismatch", "near miss"
OUTCOMES = (
    Outcome(MISMATCH, ("noise_probability",), "noise_probability", ()),
    Outcome(
        NEAR_MISS,
        ("near_miss_probability", "noise_probability"),
        "near_miss_probability",
        (Evidence("margin", "-word_margin", ("word_margin",)),),
        _MATCHED,
    ),
    Outcome(
        "wrong sentence",
        ("part_noise_probability", "noise_probability"),
        "part_noise_probability",
        (
            Evidence(
                "gap",
                "CASE WHEN part_count > 1 THEN mean_part_similarity - worst_part_similarity END",
                ("part_count", "mean_part_similarity", "worst_part_similarity"),
            ),
        ),
        _MATCHED,
    ),
)


def outcomes_of(columns: Iterable[str]) -> tuple[Outcome, ...]:
    """Return the outcomes whose columns are in a table, with the evidence that is there."""
    names = set(columns)
    return tuple(
        Outcome(
            outcome.name,
            outcome.columns,
            outcome.value,
            tuple(one for one in outcome.evidence if set(one.columns) <= names),
            outcome.weight,
        )
        for outcome in OUTCOMES
        if set(outcome.columns) <= names
    )
