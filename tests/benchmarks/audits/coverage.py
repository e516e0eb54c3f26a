"""How often the 95 % intervals of an audit hold the truth, in simulated audits.

    python tests/benchmarks audits.coverage [--draws 500] [--record docs/records/...]

Corpora of 20,000 pairs with 0, 1, 5, 20 and 50 % mismatches; in one kind the calibration is right,
in the other 40 % of the mismatches are near misses that it does not see. Each is audited again and
again by 300 answers, and by 10 and 30.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from records import make_record, write_record

from audits.simulated import Audits, simulated_corpus

RATES = (0.0, 0.01, 0.05, 0.2, 0.5)
NEAR_MISSES = (0.0, 0.4)
ANSWERS = (300, 30, 10)
PAIRS, SEPARATION = 20_000, 2.5


def coverage(rate: float, near_misses: float, answers: int, draws: int, seed: int) -> list[Any]:
    """A row for each figure of one corpus."""
    rng = np.random.default_rng([seed, round(1000 * rate), round(1000 * near_misses)])
    corpus = simulated_corpus(PAIRS, rate, SEPARATION, near_misses, rng)
    audits, truths = Audits(corpus, answers), corpus.truths()
    drawn = audits.draw(draws, rng)
    without = audits.without_mismatch(drawn)
    rows = []
    for name, estimates in audits.estimates(drawn).items():
        truth = truths[name]
        if truth is None:
            continue
        below, above = truth < estimates.low, truth > estimates.high
        rows.append(
            {
                "answers": answers,
                "rate": rate,
                "near_misses": near_misses,
                "figure": name,
                "true": truth,
                "draws": draws,
                "covered": int((~below & ~above).sum()),
                "below": int(below.sum()),
                "above": int(above.sum()),
                "width": float((estimates.high - estimates.low).mean()),
                "strata": len(audits.pairs),
                "strata_without_mismatch": without,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    rows = []
    for answers, near_misses, rate in itertools.product(ANSWERS, NEAR_MISSES, RATES):
        made = coverage(rate, near_misses, answers, arguments.draws, arguments.seed)
        rows += made
        for row in made:
            print(json.dumps(row), flush=True)
    if arguments.record is not None:
        settings = {"pairs": PAIRS, "separation": SEPARATION}
        record = make_record(rows, settings=settings, seeds=[arguments.seed])
        write_record(arguments.record, record)


if __name__ == "__main__":
    main()
