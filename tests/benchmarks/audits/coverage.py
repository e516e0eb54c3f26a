"""How often the 95 % intervals of an audit hold the truth, in simulated audits.

    python tests/benchmarks audits.coverage [--draws 500] [--record docs/records/...]

Corpora of 20,000 pairs with 0, 1, 5, 20 and 50 % mismatches; in one kind the calibration is right,
in the other 40 % of the mismatches are near misses that it does not see. Each is audited again and
again by 300 answers, and by 10 and 30.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from records import Row, benchmark

from audits.simulated import Audits, covered, simulated_corpus, width

RATES = (0.0, 0.01, 0.05, 0.2, 0.5)
NEAR_MISSES = (0.0, 0.4)
ANSWERS = (300, 30, 10)
PAIRS, SEPARATION = 20_000, 2.5


def coverage(draws: int = 500, seed: int = 0) -> Iterator[Row]:
    """A row for each figure of each corpus and number of answers."""
    for answers, near_misses, rate in itertools.product(ANSWERS, NEAR_MISSES, RATES):
        rng = np.random.default_rng([seed, round(1000 * rate), round(1000 * near_misses)])
        corpus = simulated_corpus(PAIRS, rate, SEPARATION, near_misses, rng)
        audits = Audits(corpus, answers)
        estimates = audits.estimates(audits.draw(draws, rng), alone=True)
        for figure, truth in corpus.truths().items():
            if truth is not None:
                yield {
                    "answers": answers, "rate": rate, "near_misses": near_misses,
                    "figure": figure, "true": truth, "draws": draws,
                    "covered": covered(estimates[figure], truth),
                    "width": width(estimates[figure]),
                }  # fmt: skip


if __name__ == "__main__":
    benchmark(coverage, pairs=PAIRS, separation=SEPARATION)
