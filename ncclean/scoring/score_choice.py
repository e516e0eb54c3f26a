"""Choose, without labels, the score to calibrate on: the cosine or `neg_clip_loss`.

`neg_clip_loss` compares a pair with its rivals, so it depends on the origin of wrong captions. If
they belong to other images of the corpus, these images are rivals and push the pair's score below
that of known mismatches, which are taken without them: `neg_clip_loss` then separates pairs better
than its own null says. Captions from elsewhere have no such image, and `neg_clip_loss` may be
worse.
"""

from __future__ import annotations

import numpy as np

from ncclean.base.config import CalibratedOn
from ncclean.scoring.null import BINS, Histogram, NullModel
from ncclean.scoring.stats import Distributions

_EDGES = np.linspace(-1.0, 1.0, BINS + 1)
_QUANTILES = np.arange(1, 11) / 20
# Both were measured on rendered corpora, where `excess_below` of captions from elsewhere scatters
# around 0 by .16 (docs/results.md, "Captions from outside").
_EXCESS = 0.6
_FEWER_WRONG = 3.0  # pairs


def better_score(distributions: Distributions, cosine: NullModel, other: NullModel) -> CalibratedOn:
    """Return the score to calibrate on: `neg_clip_loss` if it should err on fewer pairs.

    Else it is the cosine, `similarity`. It errs less if wrong captions belong to other images of
    the corpus (see `excess_below`), or if it separates matched from mismatched pairs better (see
    `NullModel.overlap`) by three pairs of the corpus. `cosine` and `other` are the null models of
    both scores. Their noise rates must agree, since a wrong rate makes a score look better.
    """
    normalised = distributions.score("neg_clip_loss")
    gain = distributions.matched.size * (cosine.overlap - other.overlap)
    is_better = gain >= _FEWER_WRONG or excess_below(distributions, normalised) >= _EXCESS
    return "neg_clip_loss" if is_better and cosine.agrees_with(other) else "similarity"


def excess_below(cosine: Distributions, normalised: Distributions) -> float:
    """Return how many more pairs negCLIPLoss puts as low as known mismatches than the cosine does.

    For each of ten quantiles of the known mismatches, from 5 % to the median, counts the pairs
    below it by either score. Returns the mean over the quantiles of (n_negCLIPLoss - n_cosine) /
    sqrt(n_cosine + n_negCLIPLoss + 1). If negCLIPLoss follows its null, both counts are about
    equal, and the mean scatters around 0 by less than one.
    """
    low, lower = (_below(scores.matched, scores.mismatched) for scores in (cosine, normalised))
    return float(((lower - low) / np.sqrt(low + lower + 1)).mean())


def _below(matched: Histogram, mismatched: Histogram) -> np.ndarray:
    """Count pairs as given below the quantiles of known mismatches."""
    cumulative = np.concatenate([[0.0], np.cumsum(mismatched.counts) / mismatched.size])
    quantiles = np.interp(_QUANTILES, cumulative, _EDGES)
    pairs = np.concatenate([[0], np.cumsum(matched.counts)])
    return np.asarray(np.interp(quantiles, _EDGES, pairs))
