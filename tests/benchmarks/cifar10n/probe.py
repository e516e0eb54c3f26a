"""What weights are worth to a linear probe that is trained on labels of people, some of them wrong.

    python tests/benchmarks cifar10n.probe --data FOLDER --out runs/cifar10n-probe
        [--record docs/records/cifar10n-probe.json]

FOLDER is as `corpora.py` says. The estimator of `study.py` scores photographs that it
has not seen, captioned by people's labels. A probe on its embeddings is trained on these labels,
each image counting alike, by what the scores say, and by the truth, and measured on photographs
that nobody has learnt. What lies in --out is not made again; 20 minutes on two idle cores, nearly
all of them the training.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncclean_pipelines.evaluate_models import EvaluateLinearProbe
from ncclean_pipelines.score import Score
from noise.weak_estimators import CLASS_NAMES
from records import make_record, write_record

from cifar10n.corpora import LABELS, Row, parts, reader, write_corpus
from cifar10n.study import train
from ncclean.evaluation.bootstrap import Metric, paired_differences
from ncclean.evaluation.options import ProbeOptions
from ncclean.evaluation.outcomes import LINEAR_PROBE, metrics_of

WEIGHTS = {
    "equal": None,
    "osa_weight": "osa_weight",
    "1 - noise_probability": "1 - noise_probability",
    "noise_probability < 0.5": "(noise_probability < 0.5)::INT",
    "truth": "(NOT is_noisy)::INT",
}
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


def arms(label: str, folder: Path, table: str, model: str) -> Iterator[dict[str, Any]]:
    """The accuracy of a probe by each kind of weights, and what it adds to equal ones."""
    equal: list[Metric] = []
    for name, weights in WEIGHTS.items():
        command = EvaluateLinearProbe(
            model=[model], data=[str(folder)], probe=PROBE, precision="fp32",
            scores=[table] if weights else (), weights=weights,
        )  # fmt: skip
        (result,) = command.run().summary
        metrics = metrics_of(LINEAR_PROBE, result.outcomes, result.classes)[:1]
        equal = equal or metrics
        (gain,) = paired_differences(equal, metrics)
        yield {
            "labels": label,
            "weights": name,
            "accuracy": result.metrics["lp_acc1"],
            "gain": gain.difference,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "train_images": result.settings["train_images"],
        }


def main() -> None:
    arguments = _parse()
    out, seed = arguments.out, arguments.seed
    out.mkdir(parents=True, exist_ok=True)
    learnt, rows, held_out = parts(arguments.data, seed)
    write_corpus(learnt, "clean", arguments.data, out / "learnt", seed)
    model = train(out / "learnt", arguments.passes, out / "est", seed)
    found = []
    for label in LABELS:
        write_corpus(rows, label, arguments.data, out / label, seed)
        table = str(out / f"{label}.parquet")
        Score(shards=[str(out / label)], out=table, model=model, precision="fp32").run()
        splits = {"train": rows, "test": held_out}
        folder = write_set(out / "sets" / label, arguments.data, splits, label)
        for row in arms(label, folder, table, model):
            print(json.dumps(row), flush=True)
            found.append(row)
    if arguments.record is not None:
        settings = {"learnt": len(learnt), "scored": len(rows), "held_out": len(held_out),
                    "passes": arguments.passes}  # fmt: skip
        write_record(arguments.record, make_record(found, settings=settings, seeds=[seed]))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=8, help="of the estimator's training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
