"""How many intervals of an audit hold the truth with a judge beside people, and how wide they are.

    python tests/benchmarks audits.judged [--draws 500] [--record docs/records/audit-judges.json]

People are right. Judges are right, right in nine of ten pairs, useless, lenient, strict, or say
what the noise probability says. An audit has 150 answers of people and 5,000 of the judge; people's
pairs are drawn at random within strata, or by the judge's answers. `bound` is the ratio to the
width by people alone that no estimate with this judge can fall below by its variance, if people's
pairs are drawn within strata.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from records import make_record, write_record

from audits.simulated import Corpus, simulated_corpus
from ncclean.auditing.intervals import Cells, Estimates, found_share, mismatched_share
from ncclean.auditing.strata import by_answer

RATES = (0.0, 0.01, 0.05, 0.2, 0.5)
CORPORA = {"sharp": (2.5, 0.0), "weak": (1.2, 0.4)}  # separation, share of near misses
PEOPLE, JUDGED, PAIRS = 150, 5_000, 20_000


def _flipped(corpus: Corpus, share: float, rng: np.random.Generator) -> np.ndarray:
    flips = rng.random(len(corpus.is_mismatched)) < share
    return corpus.is_mismatched ^ flips


JUDGES: dict[str, Callable[[Corpus, np.random.Generator], np.ndarray]] = {
    "right": lambda corpus, _: corpus.is_mismatched,
    "right in 90 %": lambda corpus, rng: _flipped(corpus, 0.1, rng),
    "useless": lambda corpus, rng: rng.random(PAIRS) < 0.2,
    "lenient": lambda corpus, rng: corpus.is_mismatched & (rng.random(PAIRS) < 0.6),
    "strict": lambda corpus, rng: corpus.is_mismatched | (rng.random(PAIRS) < 0.2),
    "as the estimator": lambda corpus, _: corpus.probability >= 0.5,
}


class JudgedAudits:
    """Audits of one corpus by people and a judge whose (N,) answers are 0 match, 1 mismatch."""

    def __init__(self, corpus: Corpus, judge: np.ndarray, people: int, judged: int) -> None:
        self._corpus, self._judge = corpus, np.asarray(judge, int)
        self._strata = corpus.strata
        count = len(self._strata)
        self._stratum = np.searchsorted(self._strata.bounds, corpus.probability, side="right")
        self.pairs = np.bincount(self._stratum, minlength=count)
        self._people = people
        self._taken = np.minimum(self._strata.allocated(people), self.pairs)
        wanted = np.minimum(self._strata.allocated(judged), self.pairs)
        self._judged = np.maximum(wanted, self._taken)
        self._places = [np.flatnonzero(self._stratum == number) for number in range(count)]
        self._rates = np.bincount(self._stratum, corpus.probability) / np.maximum(self.pairs, 1)

    def draw(
        self, rng: np.random.Generator, by_judge: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Places of the judge's pairs, and of people's among them."""
        drawn = [
            rng.permutation(places)[:taken]
            for places, taken in zip(self._places, self._judged, strict=True)
        ]
        judged = np.concatenate(drawn)
        if not by_judge:
            people = [mine[:n] for mine, n in zip(drawn, self._taken, strict=True)]
            return judged, np.concatenate(people)
        cell = 3 * self._stratum[judged] + self._judge[judged]
        counts = np.bincount(cell, minlength=3 * len(self.pairs)).reshape(-1, 3)
        taken = by_answer(self._strata, counts, self._rates).allocated(self._people)
        cells = (judged[cell == number][:n] for number, n in enumerate(taken) if n)
        return judged, np.concatenate(list(cells))

    def cells(
        self, draws: list[tuple[np.ndarray, np.ndarray]], among: np.ndarray, by_judge: bool = False
    ) -> Cells:
        """Cells of a figure on the pairs `among` (N,) in each draw."""
        y, strata = self._corpus.is_mismatched, len(self.pairs)

        def counts(places: np.ndarray) -> np.ndarray:
            cell = 3 * self._stratum[places] + self._judge[places]
            return np.bincount(cell, minlength=3 * strata).reshape(strata, 3).astype(float)

        people = [mine[among[mine]] for _, mine in draws]
        pairs = np.bincount(self._stratum[among], minlength=strata).astype(float)
        return Cells(
            np.broadcast_to(pairs, (len(draws), strata)),
            np.stack([counts(mine) for mine in people]),
            np.stack([counts(mine[y[mine]]) for mine in people]),
            np.stack([counts(judged[among[judged]]) for judged, _ in draws]),
            by_judge,
        )

    def estimates(
        self,
        draws: list[tuple[np.ndarray, np.ndarray]],
        by_judge: bool = False,
        alone: bool = False,
    ) -> dict[str, Estimates]:
        """By figure, as `Corpus.truths` names them; `alone` by people's answers alone."""

        def cells(among: np.ndarray) -> Cells:
            made = self.cells(draws, among, by_judge)
            return made.without_judge() if alone else made

        figures = {"noise_rate": mismatched_share(cells(np.ones(len(self._stratum), bool)))}
        for rule, flag in self._corpus.flags.items():
            flagged, others = cells(flag), cells(~flag)
            figures[f"{rule}: precision"] = mismatched_share(flagged)
            figures[f"{rule}: recall"] = found_share(flagged, others)
            figures[f"{rule}: kept"] = mismatched_share(others)
        return figures

    def bound(self) -> float:
        """The least ratio of widths of the noise rate, with and without the judge, by variances."""
        y = self._corpus.is_mismatched.astype(float)
        cell = 2 * self._stratum + self._judge
        in_cell, of_cell = np.bincount(cell), np.bincount(cell, y)
        rate = of_cell / np.maximum(in_cell, 1)
        left = np.bincount(np.arange(len(rate)) // 2, in_cell * rate * (1 - rate))
        whole = np.bincount(self._stratum, y) / np.maximum(self.pairs, 1)
        whole = self.pairs * whole * (1 - whole)
        weight = self.pairs * (1 / self._taken - 1 / self.pairs)
        of_judge = self.pairs * (1 / self._judged - 1 / self.pairs)
        alone = (weight * whole).sum()
        people = self.pairs * (1 / self._taken - 1 / self._judged)
        with_judge = (people * left + of_judge * whole).sum()
        return float(np.sqrt(with_judge / alone)) if alone else 1.0


def held(estimates: Estimates, truth: float) -> int:
    """How many intervals hold the truth."""
    low, high = estimates.low - 1e-12, estimates.high + 1e-12
    return int(((low <= truth) & (truth <= high)).sum())


def compare(corpus: str, kind: str, rate: float, draws: int, seed: int) -> list[dict[str, Any]]:
    """A row for each figure."""
    separation, near = CORPORA[corpus]
    number = list(JUDGES).index(kind)
    rng = np.random.default_rng([seed, round(1000 * rate), number])
    made = simulated_corpus(PAIRS, rate, separation, near, rng)
    audits = JudgedAudits(made, JUDGES[kind](made, rng), PEOPLE, JUDGED)
    plain = [audits.draw(rng) for _ in range(draws)]
    by_judge = [audits.draw(rng, by_judge=True) for _ in range(draws)]
    ways = {
        "alone": audits.estimates(plain, alone=True),
        "judged": audits.estimates(plain),
        "drawn": audits.estimates(by_judge, by_judge=True),
    }
    rows = []
    for name, truth in made.truths().items():
        if truth is None:
            continue
        row: dict[str, Any] = {
            "corpus": corpus, "judge": kind, "rate": rate, "figure": name, "true": truth,
            "draws": draws,
        }  # fmt: skip
        for way, estimates in ways.items():
            row[f"covered_{way}"] = held(estimates[name], truth)
            row[f"width_{way}"] = float((estimates[name].high - estimates[name].low).mean())
        if name == "noise_rate":
            row["bound"] = audits.bound()
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    rows = []
    for corpus, kind, rate in itertools.product(CORPORA, JUDGES, RATES):
        made = compare(corpus, kind, rate, arguments.draws, arguments.seed)
        rows += made
        print(json.dumps(made[0]), flush=True)
    if arguments.record is not None:
        settings = {"pairs": PAIRS, "people": PEOPLE, "judged": JUDGED, "corpora": CORPORA}
        record = make_record(rows, settings=settings, seeds=[arguments.seed])
        write_record(arguments.record, record)


if __name__ == "__main__":
    main()
