"""How many intervals of an audit hold the truth with a judge beside people, and how wide they are.

    python tests/benchmarks audits.judged [--draws 500] [--record docs/records/audit-judges.json]

People are right. Judges are right, right in nine of ten pairs, useless, or say what the noise
probability says. An audit has 150 answers of people and 5,000 of the judge; people's pairs are
drawn at random within strata, or by the judge's answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from records import Row, benchmark

from audits.simulated import Audits, Corpus, covered, simulated_corpus, width

RATES = (0.0, 0.01, 0.05, 0.2, 0.5)
CORPORA = {"sharp": (2.5, 0.0), "weak": (1.2, 0.4)}  # separation, share of near misses
PEOPLE, JUDGED, PAIRS = 150, 5_000, 20_000
JUDGES: dict[str, Callable[[Corpus, np.random.Generator], np.ndarray]] = {
    "right": lambda corpus, _: corpus.is_mismatched,
    "right in 90 %": lambda corpus, rng: corpus.is_mismatched ^ (rng.random(PAIRS) < 0.1),
    "useless": lambda corpus, rng: rng.random(PAIRS) < 0.2,
    "as the estimator": lambda corpus, _: corpus.probability >= 0.5,
}


def widths(draws: int = 500, seed: int = 0) -> Iterator[Row]:
    """A row for each figure of each corpus, judge and noise rate."""
    for (name, shape), (number, judge), rate in itertools.product(
        CORPORA.items(), enumerate(JUDGES), RATES
    ):
        rng = np.random.default_rng([seed, round(1000 * rate), number])
        corpus = simulated_corpus(PAIRS, rate, *shape, rng)
        audits = Audits(corpus, PEOPLE, JUDGES[judge](corpus, rng), JUDGED)
        drawn, by_judge = audits.draw(draws, rng), audits.draw(draws, rng, by_judge=True)
        ways = {
            "alone": audits.estimates(drawn, alone=True),
            "judged": audits.estimates(drawn),
            "drawn": audits.estimates(by_judge, by_judge=True),
        }
        for figure, truth in corpus.truths().items():
            if truth is not None:
                yield {
                    "corpus": name, "judge": judge, "rate": rate, "figure": figure, "true": truth,
                    "draws": draws,
                    **{f"covered_{way}": covered(of[figure], truth) for way, of in ways.items()},
                    **{f"width_{way}": width(of[figure]) for way, of in ways.items()},
                }  # fmt: skip


if __name__ == "__main__":
    benchmark(widths, pairs=PAIRS, people=PEOPLE, judged=JUDGED, corpora=CORPORA)
