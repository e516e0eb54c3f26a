"""How often the 95 % intervals of an audit hold the truth, in simulated audits.

    python tests/benchmarks audits.coverage [--draws 500] [--record docs/records/...]

Corpora of 20,000 pairs with 0, 1, 5, 20 and 50 % mismatches; in one kind the calibration is right,
in the other 40 % of the mismatches are near misses that it does not see. Each is audited again and
again by 300 answers, and by 10 and 30.

With `--judges` a judge stands beside people, who are right. Judges are right, right in nine of ten
pairs, useless, or say what the noise probability says. An audit has 150 answers of people and 5,000
of the judge; people's pairs are drawn at random within strata, or by the judge's answers. Then the
width of an interval counts as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from records import Row, benchmark

from audits.simulated import Audits, Corpus, covered, simulated_corpus, width

RATES = (0.0, 0.01, 0.05, 0.2, 0.5)
NEAR_MISSES = (0.0, 0.4)
ANSWERS = (300, 30, 10)
PAIRS, SEPARATION = 20_000, 2.5


def coverage(draws: int, seed: int) -> Iterator[Row]:
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


CORPORA = {"sharp": (2.5, 0.0), "weak": (1.2, 0.4)}  # separation, share of near misses
PEOPLE, JUDGED = 150, 5_000
JUDGES: dict[str, Callable[[Corpus, np.random.Generator], np.ndarray]] = {
    "right": lambda corpus, _: corpus.is_mismatched,
    "right in 90 %": lambda corpus, rng: corpus.is_mismatched ^ (rng.random(PAIRS) < 0.1),
    "useless": lambda corpus, rng: rng.random(PAIRS) < 0.2,
    "as the estimator": lambda corpus, _: corpus.probability >= 0.5,
}


def widths(draws: int, seed: int) -> Iterator[Row]:
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


def audits(draws: int = 500, seed: int = 0, judges: bool = False) -> Iterator[Row]:
    """The rows of audits by people, or by people and judges."""
    yield from (widths if judges else coverage)(draws, seed)


if __name__ == "__main__":
    benchmark(
        audits, pairs=PAIRS, separation=SEPARATION, people=PEOPLE, judged=JUDGED, corpora=CORPORA
    )
