"""What may be wrong with a pair: columns with its probability, and the evidence beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ncclean.explaining.kinds import IMAGE, PAIR, TEXT

MISMATCH = "mismatch"


@dataclass(frozen=True)
class Outcome:
    """A way to be wrong. `value` is SQL for its probability, of a pair with status ok.

    `evidence` says by what a group is made of which further values must be higher too: columns of
    the pairs beside the value's own.
    """

    name: str
    plural: str
    columns: tuple[str, ...]
    value: str
    evidence: dict[str, tuple[str, ...]]


# A pair that is mismatched altogether has no wrong word, and no wrong sentence: it counts once.
_MATCHED = "(1 - coalesce(noise_probability, 0))"
_ALONE: dict[str, tuple[str, ...]] = {TEXT: (), IMAGE: (), PAIR: ()}
BY_IMAGES, BY_CAPTIONS = "rank_among_images", "rank_among_captions"
OUTCOMES = (
    Outcome(
        MISMATCH,
        "mismatches",
        ("noise_probability",),
        "noise_probability",
        {TEXT: (BY_IMAGES,), IMAGE: (BY_CAPTIONS,), PAIR: (BY_IMAGES, BY_CAPTIONS)},
    ),
    Outcome(
        "near miss",
        "near misses",
        ("near_miss_probability", "noise_probability"),
        f"near_miss_probability * {_MATCHED}",
        _ALONE,
    ),
    Outcome(
        "wrong sentence",
        "wrong sentences",
        ("part_noise_probability", "noise_probability"),
        f"part_noise_probability * {_MATCHED}",
        _ALONE,
    ),
)


def outcomes_of(columns: Iterable[str]) -> tuple[Outcome, ...]:
    """The outcomes that a table with these columns tells about."""
    there = set(columns)
    return tuple(outcome for outcome in OUTCOMES if set(outcome.columns) <= there)
