"""What weights are worth to a linear probe that is trained on labels of people, some of them wrong.

    python tests/benchmarks cifar10n.probe --data FOLDER --out runs/cifar10n-probe
        [--record docs/records/cifar10n-probe.json]

FOLDER is as `corpora.py` says. The estimator of `study.py` scores photographs that it
has not seen, captioned by people's labels. A probe on its embeddings is trained on these labels,
each image counting alike, by what the scores say, less those that score lowest, and less those that
are wrong in truth, and measured on photographs that nobody has learnt. What lies in --out is not
made again; half an hour on two idle cores, most of it the training.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from ncclean_pipelines.evaluate_models import EvaluateLinearProbe
from ncclean_pipelines.score import Score
from noise.weak_estimators import CLASS_NAMES
from records import make_record, write_record

from cifar10n.corpora import LABELS, Row, reader, write_corpus
from cifar10n.estimator import Beginning, parser
from ncclean.errors import InputError
from ncclean.evaluation.bootstrap import Metric, paired_differences
from ncclean.evaluation.options import ProbeOptions
from ncclean.evaluation.outcomes import LINEAR_PROBE, metrics_of
from ncclean.evaluation.sample_weights import read_sample_weights

PROBE = ProbeOptions(solver="adamw", learning_rate=5e-3)


def write_set(folder: Path, data: Path, rows: dict[str, list[Row]], label: str) -> Path:
    """A set in CyCLIP's layout: the training images with a column of labels, the test's true."""
    names = list(CLASS_NAMES)
    read = reader(data)
    for split, images in rows.items():
        place = folder / split
        place.mkdir(parents=True, exist_ok=True)
        with open(place / "labels.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "label"])
            for row in images:
                name = Path(row["file"]).name
                if not (place / name).exists():
                    (place / name).write_bytes(read(row["file"]))
                column = label if split == "train" else "clean"
                writer.writerow([name, names.index(row[column])])
    (folder / "classes.py").write_text(f"classes = {names!r}\ntemplates = ['a photo of a {{}}.']\n")
    return folder


def weightings(estimated: float, true: float) -> dict[str, str | None]:
    """The SQL of each arm's weights; the shares are of pairs that are wrong."""
    return {
        "equal": None,
        "`osa_weight`": "osa_weight",
        "1 - `noise_probability`": "1 - noise_probability",
        "`clean_posterior`": "clean_posterior",
        "drop `noise_probability` >= 0.5": "(noise_probability < 0.5)::INT",
        "drop the lowest cosines, as many as estimated": _highest(estimated),
        "drop the lowest cosines, as many as are wrong": _highest(true),
        "drop what is wrong": "(NOT is_noisy)::INT",
    }


def _highest(dropped: float) -> str:
    return f"(rank(similarity) >= {dropped:.6f})::INT"


def arms(
    label: str, folder: Path, table: str, model: str, estimated: float
) -> Iterator[dict[str, Any]]:
    """The accuracy of a probe by each kind of weights, and what it adds to equal ones.

    `kept` is the share of the images that count, `wrong` that of wrong labels by weight. An arm of
    weights that are all 0 is `refused`, with the reason.
    """
    rows = pq.read_table(table, columns=["shard", "key", "is_noisy"]).to_pydict()
    keys = [f"{shard}/{key}" for shard, key in zip(rows["shard"], rows["key"], strict=True)]
    is_wrong = np.array(rows["is_noisy"], dtype=bool)
    equal: list[Metric] = []
    for name, sql in weightings(estimated, float(is_wrong.mean())).items():
        arm: dict[str, Any] = {"labels": label, "weights": name}
        try:
            weights = read_sample_weights([table], sql or "1", keys, keys)
        except InputError as error:
            yield {**arm, "refused": str(error)}
            continue
        command = EvaluateLinearProbe(
            model=[model], data=[str(folder)], probe=PROBE, precision="fp32",
            scores=[table] if sql else (), weights=sql,
        )  # fmt: skip
        (result,) = command.run().summary
        metrics = metrics_of(LINEAR_PROBE, result.outcomes, result.classes)[:1]
        equal = equal or metrics
        (gain,) = paired_differences(equal, metrics)
        yield {
            **arm,
            "kept": float((weights > 0).mean()),
            "wrong": float(np.average(is_wrong, weights=np.nan_to_num(weights))),
            "accuracy": result.metrics["lp_acc1"],
            "gain": gain.difference,
            "gain_low": gain.low,
            "gain_high": gain.high,
        }


def main() -> None:
    arguments = parser(__doc__).parse_args()
    begun, out, data = Beginning.of(arguments), arguments.out, arguments.data
    found = []
    for label in LABELS:
        write_corpus(begun.scored, label, data, out / label, arguments.seed)
        table = str(out / f"{label}.parquet")
        score = Score(shards=[str(out / label)], out=table, model=begun.model, precision="fp32")
        estimated = score.run().summary.noise_rate.value
        splits = {"train": begun.scored, "test": begun.held_out}
        folder = write_set(out / "sets" / label, data, splits, label)
        for row in arms(label, folder, table, begun.model, estimated):
            print(json.dumps(row), flush=True)
            found.append(row)
    if arguments.record is not None:
        settings = {**begun.settings(), "passes": arguments.passes}
        seeds = [arguments.seed]
        write_record(arguments.record, make_record(found, settings=settings, seeds=seeds))


if __name__ == "__main__":
    main()
