"""The columns that `evaluate noise` takes as scores, with direction and operating point."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from ncclean.base.rules import flagging_condition
from ncclean.base.schema import EVALUATED_SCORES


@dataclass(frozen=True)
class NoiseScore:
    """A column and its operating point.

    A pair at or beyond `threshold`, on the noisier side, is flagged; `below` leaves out the
    threshold itself. Without a threshold, as many pairs are flagged as are estimated to be noisy.
    """

    column: str
    higher_is_noisier: bool
    threshold: float | None = None
    below: bool = False

    @property
    def sign(self) -> int:
        """The factor that turns the column into a noise score, higher is noisier."""
        return 1 if self.higher_is_noisier else -1

    def noise_threshold(self, threshold: float) -> float:
        """The threshold on the noise score, at and above which a pair is flagged."""
        if self.below:
            threshold = math.nextafter(threshold, -math.inf)
        return self.sign * threshold

    def condition(self, threshold: float) -> str:
        """SQL that is true for the pairs that a threshold flags; tables show it."""
        return flagging_condition(
            self.column,
            threshold,
            higher_is_cleaner=not self.higher_is_noisier,
            exclusive=self.below,
        )


BUILT_IN_SCORES = tuple(
    NoiseScore(column, not facts.higher_is_cleaner, facts.noise_threshold, below=facts.exclusive)
    for column, facts in EVALUATED_SCORES.items()
)


def named_score(text: str) -> tuple[str, str]:
    """Split `NAME=SQL` into name and SQL; SQL alone is its own name.

    >>> named_score("mix = 0.5 * rank(similarity)")
    ('mix', '0.5 * rank(similarity)')
    """
    named = re.fullmatch(r"\s*(\w+)\s*=(?!=)\s*(.+)", text, re.DOTALL)
    return (named[1], named[2]) if named is not None else (text, text)


def threshold_at_rate(sorted_scores: np.ndarray, rate: float) -> float:
    """The threshold that flags the share `rate` of (N,) descending noise scores.

    Infinite where the rate is 0: nothing is flagged.
    """
    count = min(math.ceil(rate * len(sorted_scores) - 1e-9), len(sorted_scores))
    return float(sorted_scores[count - 1]) if count > 0 else math.inf
