"""Which score to calibrate on, the cosine or `neg_clip_loss`, by what needs no labels.

`neg_clip_loss` compares a pair with its rivals, so it depends on where wrong captions come from. If
they belong to other images of the corpus, these images are among the rivals and push the score of
the pair below that of known mismatches, which are taken without them: `neg_clip_loss` then tells
pairs apart better than its own null says. Captions from elsewhere have no such image, and
`neg_clip_loss` may be the worse of the two.
"""

from __future__ import annotations

import math

import numpy as np

from ncclean.config import CalibratedOn
from ncclean.scoring.null import BINS, Histogram, NullModel
from ncclean.scoring.stats import Distributions

_EDGES = np.linspace(-1.0, 1.0, BINS + 1)
_QUARTER = 0.25
# Both by measurement on rendered corpora, where `excess_below` of captions from elsewhere scatters
# around 0 by .4 (docs/results.md, "Captions from outside").
_EXCESS = 1.0
_FEWER_WRONG = 3.0  # pairs


def better_score(distributions: Distributions, cosine: NullModel, other: NullModel) -> CalibratedOn:
    """`neg_clip_loss`, whose null is `other`, where it is likely to be wrong on fewer pairs.

    That is where wrong captions belong to other images of the corpus (see `excess_below`), or where
    it tells matched from mismatched pairs better (see `NullModel.overlap`) by three pairs of the
    corpus. A rate that is wrong makes a score look better, so the two must agree on it.
    """
    normalised = distributions.score("neg_clip_loss")
    gain = distributions.matched.size * (cosine.overlap - other.overlap)
    is_better = gain >= _FEWER_WRONG or excess_below(distributions, normalised) >= _EXCESS
    return "neg_clip_loss" if is_better and cosine.agrees_with(other) else "similarity"


def excess_below(cosine: Distributions, normalised: Distributions) -> float:
    """How many more pairs than by the cosine have a `neg_clip_loss` below most known mismatches.

    The pairs as given below the first quartile of the known mismatches are a quarter of the
    mismatched ones and the matched ones that are as low, by either score about as many. The
    difference is in standard errors of a difference of independent counts; the counts are of the
    same pairs, so that it scatters by about .4.
    """
    low, lower = (_below(scores.matched, scores.mismatched) for scores in (cosine, normalised))
    return (lower - low) / math.sqrt(low + lower + 1)


def _below(matched: Histogram, mismatched: Histogram) -> float:
    """Number of pairs as given below the first quartile of known mismatches."""
    cumulative = np.concatenate([[0.0], np.cumsum(mismatched.counts) / mismatched.size])
    quartile = np.interp(_QUARTER, cumulative, _EDGES)
    return float(np.interp(quartile, _EDGES, np.concatenate([[0], np.cumsum(matched.counts)])))
