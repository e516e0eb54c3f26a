"""What may be wrong with a pair: columns with its probability, and the evidence beside it.

The probability is high where the pair is wrong, and where scores of its kind are low for another
reason. Each piece of evidence is blind to one such reason:

- `noise_probability` comes from cosines. A cosine is low if captions of its kind have low cosines,
  as short ones do. What all cosines of a caption have in common does not change the rank of the own
  image among the other images of the block; what those of an image have in common does not change
  the rank of the own caption.
- `near_miss_probability` has two parts. That of the whole cosine is low for dark images and odd
  captions; the margin to the best other word is not.
- `part_noise_probability`: the gap between the worst part and the mean of all is the same whatever
  all parts have in common.

A caption that says little, such as one word, has its image among the first third rather than at the
top, and a weak estimator puts a fifth of such images in the lower half. Where no comparable
captions are outside a group, nothing says what right ones look like, but known mismatches do: their
images are in the lower half of the ranks half of the time (`FAR_WRONG`), whatever their captions
are like. Right pairs are taken to be there half as often (`FAR_RIGHT`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ncclean.explaining.kinds import IMAGE, PAIR, TEXT

_FEWEST_RIVALS = 16  # in a block, for a rank to tell anything


@dataclass(frozen=True)
class Evidence:
    """A number by which pairs are wrong more or less often, null where it tells nothing.

    In its place comes the mean value of the pairs with a like number. `is_share` is one that is
    taken as it is. `made_of` are the groups for which it counts. It must show the share `least` of
    what wrong pairs would make it show: groups of pairs that were made wrong show .95 or more.
    """

    name: str
    sql: str
    columns: tuple[str, ...]
    made_of: tuple[str, ...] = (TEXT, IMAGE, PAIR)
    is_share: bool = False
    least: float = 0.85


@dataclass(frozen=True)
class Outcome:
    """A way to be wrong, of a pair with status ok.

    `value` is SQL for its probability if `weight` holds, SQL for the probability that it can be
    wrong in this way at all.
    """

    name: str
    columns: tuple[str, ...]
    value: str
    evidence: tuple[Evidence, ...]
    weight: str = "1"


def _rank_share(rank: str) -> str:
    """SQL for the share of a block that is better than the own partner."""
    return (
        f"CASE WHEN rivals._rivals >= {_FEWEST_RIVALS} AND {rank} >= 0 "
        f"THEN {rank}::DOUBLE / rivals._rivals END"
    )


# A pair that is mismatched altogether has no wrong word, and no wrong sentence: it counts once.
_MATCHED = "(1 - coalesce(noise_probability, 0))"
_AMONG_IMAGES = _rank_share("t2i_rank")
FAR = "far"
FAR_WRONG, FAR_RIGHT = 0.5, 0.25
NEAR_MISS = "near miss"
OUTCOMES = (
    Outcome(
        "mismatch",
        ("noise_probability",),
        "noise_probability",
        (
            Evidence("images", _AMONG_IMAGES, ("t2i_rank", "block"), (TEXT, PAIR)),
            Evidence("captions", _rank_share("i2t_rank"), ("i2t_rank", "block"), (IMAGE, PAIR)),
            Evidence(
                FAR, f"({_AMONG_IMAGES}) > 0.5", ("t2i_rank", "block"), is_share=True, least=0.5
            ),
        ),
    ),
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
    """The outcomes that a table with these columns tells about, and the evidence that it has."""
    there = set(columns)
    return tuple(
        Outcome(
            outcome.name,
            outcome.columns,
            outcome.value,
            tuple(one for one in outcome.evidence if set(one.columns) <= there),
            outcome.weight,
        )
        for outcome in OUTCOMES
        if set(outcome.columns) <= there
    )
