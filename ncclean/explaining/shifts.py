"""Find shifted captions: the k for which each image's caption is that of the k-th pair after it.

The pairs of a cause, in table order, are compared at every k from -16 to 16. If images and captions
k apart fit far better than the pairs as they are, the captions were shifted. If that holds only for
a part of the pairs, the run has the largest sum of

    d_i = cos(image i, caption i + k) - cos(image i, caption i).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import duckdb
import numpy as np

LARGEST = 16
# A shift is proposed if it makes this share of the run's pairs right, and adds this share of the
# cause's pairs to the right ones.
_RIGHT, _GAIN = 0.5, 0.3
_DEVIATIONS = 6.0  # of the mean gain: many shifts and runs are tried
_ORDERED = frozenset({"shard", "host", "folder of the url"})


@dataclass(frozen=True)
class Shift:
    """A shift of captions in a run of a group's pairs: caption i + `by` belongs to image i.

    `places` are the run's pairs in the file of the pairs, `sources` those of the pairs that have
    their captions, -1 beyond the end. `right_before` and `right_after` are expected numbers of
    right pairs, `pairs` is that of the group. The order is the table's or, if `is_by_name`, that of
    file names in file managers, with numbers by value.
    """

    by: int
    places: np.ndarray
    sources: np.ndarray
    right_before: float
    right_after: float
    pairs: int  # of the cause
    is_by_name: bool = False

    def __str__(self) -> str:
        where = "all" if len(self.places) == self.pairs else f"a run of {len(self.places):,}"
        side = "after" if self.by > 0 else "before"
        count = "" if abs(self.by) == 1 else f"{abs(self.by)} places "
        which = f"the pair {count}{side} it" if count else f"the next pair {side} it"
        order = ", numbers in file names by their value" if self.is_by_name else ""
        return (
            f"captions are shifted by {self.by:+d} in {where} of the {self.pairs:,} pairs: with "
            f"the caption of {which}{order}, about {self.right_after:,.0f} are right instead of "
            f"{self.right_before:,.0f}"
        )


def is_ordered(kind: str, is_by: bool) -> bool:
    """Check whether pairs of such a group were written one after another, as in a shard.

    `kind` is the name of a kind of group, `is_by` marks one of `--by`.
    """
    return is_by or kind in _ORDERED


def right_cosine(connection: duckdb.DuckDBPyConnection, value: str) -> float:
    """Return the mean cosine of right pairs of the view `pairs`, weighted by 1 - `value`.

    `value` is SQL for the probability that a pair is wrong.
    """
    mean = connection.execute(
        f"SELECT sum(similarity * (1 - {value})) / sum(1 - {value}) FROM pairs "
        "WHERE isfinite(similarity)"
    ).fetchall()[0][0]
    return float(mean) if mean is not None else math.nan


def find_shift(
    places: np.ndarray, image: np.ndarray, text: np.ndarray, right: float
) -> Shift | None:
    """Find how the captions of a group are shifted, and where; None if no shift makes it right.

    `image` and `text` (n, d) are the embeddings of its pairs in order, `places` (n,) their places.
    Shifts up to 16 are tried. With the run's mean cosine m at a shift, its mean w over all other
    shifts, and `right` the mean cosine of right pairs of the corpus, the share of right pairs is (m
    - w) / (right - w).
    """
    image, text = image.astype(np.float32), text.astype(np.float32)
    count = len(places)

    def cosines(by: int) -> np.ndarray:
        moved = np.full(count, np.nan, np.float32)
        here = np.arange(max(0, -by), min(count, count - by))
        moved[here] = np.einsum("nd,nd->n", image[here], text[here + by])
        return moved

    candidates = [by for by in range(-LARGEST, LARGEST + 1) if by and abs(by) < count]
    if not candidates or not math.isfinite(right):
        return None
    cosines_at = {by: cosines(by) for by in (0, *candidates)}
    # Nothing beyond the ends could fit.
    gains = {by: np.nan_to_num(cosines_at[by] - cosines_at[0], nan=-1.0) for by in candidates}
    runs = {by: _largest_run(gain) for by, gain in gains.items()}
    by = max(candidates, key=lambda one: gains[one][slice(*runs[one])].sum())
    run = np.arange(*runs[by])
    gain = gains[by][run]
    others = [np.nanmean(cosines_at[one][run]) for one in candidates if one != by]
    wrong = float(np.mean(others)) if others else 0.0
    if right <= wrong or gain.mean() < _DEVIATIONS * gain.std() / math.sqrt(len(run)):
        return None

    def right_pairs(values: np.ndarray) -> float:
        share = (float(np.nanmean(values)) - wrong) / (right - wrong)
        return len(run) * min(max(share, 0.0), 1.0)

    before, after = right_pairs(cosines_at[0][run]), right_pairs(cosines_at[by][run])
    if after < _RIGHT * len(run) or after - before < _GAIN * count:
        return None
    sources = run + by
    has_source = (sources >= 0) & (sources < count)
    moved = np.where(has_source, places[np.clip(sources, 0, count - 1)], -1)
    return Shift(by, places[run], moved, before, after, count)


def _largest_run(values: np.ndarray) -> tuple[int, int]:
    """Return begin and end of the run with the largest sum (Kadane's algorithm)."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    lowest = np.minimum.accumulate(sums[:-1])
    end = int((sums[1:] - lowest).argmax()) + 1
    begin = int(sums[:end].argmin())
    return begin, end
