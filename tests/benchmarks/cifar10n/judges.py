"""Cheap judges who really erred: audits of CIFAR-10N with the labels of its three people.

    python tests/benchmarks cifar10n.judges --data FOLDER --scores runs/cifar10n-probe
        [--record docs/records/cifar10n-judges.json]

FOLDER is as `cifar10n.corpora` says, with the columns `random1`, `random2` and `random3`; --scores
holds the tables `worse.parquet`, `random1.parquet` and `aggregate.parquet` of `cifar10n.probe`. A
caption is what people said of a photograph. The expert knows the true class; a judge is one of
three other people, who says mismatch where the label that he gave is another one than the
caption's. Minutes on one core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from audits.simulated import Audits, Corpus, covered, width
from records import Row, benchmark

from cifar10n.figures import human_corpus
from ncclean.auditing.intervals import Estimates

JUDGES = {
    "worse": ("random1", "random2", "random3"),
    "random1": ("random2", "random3"),
    "aggregate": ("random1", "random2", "random3"),
}
PEOPLE, JUDGED, ALONE = 150, 5_000, (150, 300, 1_000)
_FIGURES = ("noise_rate", "p >= 0.5: precision", "p >= 0.5: recall", "p >= 0.5: kept")


def judgements(table: str, label: str, data: Path) -> dict[str, np.ndarray]:
    """(N,) what each judge says of the rows of a table: 0 match, 1 mismatch."""
    keys = pq.read_table(table, columns=["key"]).column("key").to_pylist()
    rows = pq.read_table(data / "labels.parquet").to_pylist()
    of_key = {Path(row["file"]).stem: row for row in rows if row["split"] == "train"}
    labels = [of_key[key] for key in keys]
    return {
        judge: np.array([int(row[judge] != row[label]) for row in labels])
        for judge in JUDGES[label]
    }


def audits(data: Path, scores: Path, draws: int = 200, seed: int = 0) -> Iterator[Row]:
    """A row for each set of labels, judge and way to draw; people alone with several numbers."""
    for label in JUDGES:
        table = str(scores / f"{label}.parquet")
        corpus = human_corpus(table)
        facts = {"label": label, "draws": draws, "true": float(corpus.is_mismatched.mean())}
        for people in ALONE:
            alone = Audits(corpus, people)
            drawn = alone.draw(draws, np.random.default_rng([seed, people]))
            way = {"judge": None, "way": "people", "people": people}
            yield {**facts, **way, **_figures(corpus, alone.estimates(drawn, alone=True))}
        for judge, said in judgements(table, label, data).items():
            both = Audits(corpus, PEOPLE, said, JUDGED)
            rng = np.random.default_rng([seed, PEOPLE])
            agrees = float((said == corpus.is_mismatched).mean())
            ways = {"people and judge": False, "people, drawn by the judge": True}
            for name, by_judge in ways.items():
                drawn = both.draw(draws, rng, by_judge)
                way = {"judge": judge, "agrees": agrees, "way": name, "people": PEOPLE}
                yield {**facts, **way, **_figures(corpus, both.estimates(drawn, by_judge=by_judge))}


def _figures(corpus: Corpus, estimates: Mapping[str, Estimates]) -> dict[str, float]:
    """Coverage and width of each figure of `_FIGURES`."""
    truths = corpus.truths()
    return {
        **{f"covered {name}": covered(estimates[name], truths[name]) for name in _FIGURES},
        **{f"width {name}": width(estimates[name]) for name in _FIGURES},
    }


if __name__ == "__main__":
    benchmark(audits, people=PEOPLE, judged=JUDGED)
