"""The views of a review: which pairs, and in which order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ncclean.base.schema import SCORE_FACTS
from ncclean.report.pairs import ALMOST, BORDERLINE, WRONG_SENTENCE
from ncclean.storage.quoting import identifier


@dataclass(frozen=True)
class View:
    """Pairs for which a condition holds, in an order; `score` is drawn as a histogram.

    Tables that lack a column of `needs` do not have the view.
    """

    name: str
    title: str
    condition: str
    order: str
    score: str | None = None
    needs: tuple[str, ...] = ()


# Null in all rows where the estimator cannot tell.
PROBABILITIES = ("near_miss_probability", "part_noise_probability")

_MISMATCHED = View(
    "suspects",
    "Suspects",
    "noise_probability >= 0.5",
    "noise_probability DESC, similarity",
    "noise_probability",
    ("noise_probability",),
)
_UNCALIBRATED = View(
    "suspects", "Lowest cosines", "status = 'ok'", "similarity", "similarity", ("similarity",)
)
_FURTHER = (
    View(
        "near-misses",
        "Near misses",
        ALMOST,
        "near_miss_probability DESC, near_miss_score",
        "near_miss_probability",
        ("near_miss_probability", "noise_probability", "suspect_word"),
    ),
    View(
        "wrong-sentences",
        "Wrong sentences",
        WRONG_SENTENCE,
        "part_noise_probability DESC",
        "part_noise_probability",
        ("part_noise_probability", "noise_probability", "part_starts"),
    ),
    View(
        "borderline",
        "Borderline",
        BORDERLINE,
        "abs(noise_probability - 0.5)",
        "noise_probability",
        ("noise_probability",),
    ),
    View(
        "duplicates",
        "Near-duplicates",
        "pair_group IS NOT NULL",
        "pair_group, similarity DESC",
        "similarity",
        ("pair_group",),
    ),
    View(
        "image-duplicates",
        "Near-duplicate images",
        "image_group IS NOT NULL",
        "image_group, similarity DESC",
        "similarity",
        ("image_group",),
    ),
    View(
        "false-negatives",
        "False negatives",
        "status = 'ok' AND (better_captions > 0 OR better_images > 0) AND noise_probability < 0.5",
        "greatest(better_captions, better_images) DESC",
        "better_captions",
        ("better_captions", "better_images", "noise_probability"),
    ),
    View("failures", "Failures", "status <> 'ok'", "status"),
    View("all", "All pairs", "true", "_place"),
)


def views_of(columns: Collection[str], told: Collection[str]) -> tuple[View, ...]:
    """The views that a table has: its columns, and the probabilities that are not always null."""
    first = _MISMATCHED if "noise_probability" in told else _UNCALIBRATED
    views = (view for view in (first, *_FURTHER) if set(view.needs) <= set(columns))
    return tuple(
        replace(view, title=f"{view.title}: the estimator cannot tell")
        if view.score in PROBABILITIES and view.score not in told
        else view
        for view in views
    )


def scores_of(columns: Collection[str]) -> dict[str, str]:
    """The scores by which pairs can be sorted, with their labels."""
    return {name: facts.label for name, facts in SCORE_FACTS.items() if name in columns}


def order_by(score: str) -> str:
    """ORDER BY that begins with the pairs a score calls noisy."""
    facts = SCORE_FACTS[score]
    return f"{identifier(score)} {'ASC' if facts.higher_is_cleaner else 'DESC'} NULLS LAST"
