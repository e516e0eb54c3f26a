"""Cheap judges who really erred: audits of CIFAR-10N with the labels of its three people.

    python tests/benchmarks cifar10n.judges --data FOLDER --scores runs/cifar10n-probe
        [--record docs/records/cifar10n-judges.json]

FOLDER is as `corpora.py` says, with the columns `random1`, `random2` and `random3`; --scores holds
the tables `worse.parquet`, `random1.parquet` and `aggregate.parquet` of `cifar10n.probe`. A caption
is what people said of a photograph. The expert knows the true class; a judge is one of three other
people, who says mismatch where the label that he gave is another one than the caption's, or the
vote of them. `estimator` is a judge who says what the noise probability says. Minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from audits.judged import JudgedAudits, held
from audits.simulated import Corpus
from records import make_record, write_record

from cifar10n.figures import human_corpus

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
    said = {
        judge: np.array([int(row[judge] != row[label]) for row in labels])
        for judge in JUDGES[label]
    }
    if len(said) == 3:
        said["vote"] = (sum(said.values()) >= 2).astype(int)
    return said


def audits_of(
    corpus: Corpus, judge: np.ndarray, people: int, draws: int, seed: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Estimates by people alone, with the judge, and of pairs that were drawn by its answers."""
    audits = JudgedAudits(corpus, judge, people, JUDGED)
    rng = np.random.default_rng([seed, people])
    plain = [audits.draw(rng) for _ in range(draws)]
    yield "people", dict(audits.estimates(plain, alone=True))
    if people == PEOPLE:
        yield "people and judge", dict(audits.estimates(plain))
        drawn = [audits.draw(rng, by_judge=True) for _ in range(draws)]
        yield "people, drawn by the judge", dict(audits.estimates(drawn, by_judge=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for label in JUDGES:
        table = str(arguments.scores / f"{label}.parquet")
        corpus = human_corpus(table)
        y, truths = corpus.is_mismatched, corpus.truths()
        of_judges = judgements(table, label, arguments.data)
        of_judges["estimator"] = (corpus.probability >= 0.5).astype(int)
        for judge, said in of_judges.items():
            for people in ALONE:
                if people != PEOPLE and judge != next(iter(of_judges)):
                    continue  # the judge plays no part there
                ways = audits_of(corpus, said, people, arguments.draws, arguments.seed)
                for way, estimates in ways:
                    if way == "people" and judge != next(iter(of_judges)):
                        continue
                    row = {
                        "label": label,
                        "judge": None if way == "people" else judge,
                        "agrees": None if way == "people" else float((said == y).mean()),
                        "way": way,
                        "people": people,
                        "draws": arguments.draws,
                        "true": truths["noise_rate"],
                    }
                    for name in _FIGURES:
                        truth = truths[name]
                        assert truth is not None
                        row[f"covered {name}"] = held(estimates[name], truth)
                        row[f"width {name}"] = float(
                            (estimates[name].high - estimates[name].low).mean()
                        )
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    if arguments.record is not None:
        settings = {"people": PEOPLE, "judged": JUDGED}
        write_record(arguments.record, make_record(rows, settings=settings, seeds=[arguments.seed]))


if __name__ == "__main__":
    main()
