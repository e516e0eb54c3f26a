"""What weights are worth to a linear probe that is trained on labels of people, some of them wrong.

    python tests/benchmarks cifar10n.probe --data FOLDER --out runs/cifar10n-probe
        [--record docs/records/cifar10n-probe.json]

FOLDER is as `cifar10n.corpora` says. The estimator of `cifar10n.study` scores photographs that it
has not seen, captioned by people's labels. A probe on its embeddings is trained on these labels,
each image counting alike, by what the scores say, less those that score lowest, and less those that
are wrong in truth, and measured on photographs that nobody has learnt. What lies in --out is not
made again; half an hour on two idle cores with 8 passes, most of it the training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from corpora import image_reader
from ncclean_pipelines.evaluate_models import EvaluateLinearProbe
from ncclean_pipelines.score import Score
from records import Row, benchmark

from cifar10n import corpora
from cifar10n.corpora import CLASS_NAMES, LABELS, write_corpus
from ncclean.data.benchmark_sets import CLASSIFICATION, find_sets
from ncclean.errors import InputError
from ncclean.evaluation.bootstrap import Metric, paired_differences
from ncclean.evaluation.embedding import embed_classes
from ncclean.evaluation.linear_probe import fit_probe
from ncclean.evaluation.options import EmbeddingOptions, ProbeOptions
from ncclean.evaluation.outcomes import LINEAR_PROBE, classification_outcomes, metrics_of
from ncclean.evaluation.sample_weights import SampleWeights
from ncclean.models.estimator import Estimator

_NAMES = list(CLASS_NAMES)
PROBE = ProbeOptions(solver="adamw", learning_rate=5e-3)


def write_set(folder: Path, data: Path, rows: dict[str, list[corpora.Row]], label: str) -> Path:
    """A set in CyCLIP's layout: the training images with a column of labels, the test's true."""
    read = image_reader(data)
    for split, images in rows.items():
        column = label if split == "train" else "clean"
        lines = ["image,label"]
        for row in images:
            name = Path(row["file"]).name
            place = folder / split / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(read(row["file"]))
            lines.append(f"{name},{_NAMES.index(row[column])}")
        (folder / split / "labels.csv").write_text("\n".join(lines) + "\n")
    (folder / "classes.py").write_text(
        f"classes = {_NAMES!r}\ntemplates = ['a photo of a {{}}.']\n"
    )
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


class Probes:
    """Probes on the embeddings of one set of photographs, which are taken once for all labels."""

    def __init__(self, folder: Path, model: str, images: list[corpora.Row]) -> None:
        one = next(iter(find_sets([str(folder)], CLASSIFICATION, ("train", "test"))))
        estimator = Estimator.load(model, None, precision="fp32")
        self._train, self._test = (
            embed_classes(estimator, one.shards(split), len(_NAMES), EmbeddingOptions(), one.label)
            for split in ("train", "test")
        )
        by_key = {Path(row["file"]).stem: row for row in images}
        self._rows = [by_key[Path(key).stem] for key in self._train.sample_keys]

    def accuracy(
        self, label: str, weighting: SampleWeights | None
    ) -> tuple[Metric, dict[str, float]]:
        """The top-1 accuracy of a probe, and which share of the images counts and is wrong.

        As `evaluate linear-probe` does it. Raises `InputError` for weights that are all 0.
        """
        train, test = self._train, self._test
        weights = torch.ones(len(self._rows))
        if weighting is not None:
            weights = weighting.of(train.keys, train.sample_keys)
        there = ~torch.isnan(weights)
        labels = torch.tensor([_NAMES.index(row[label]) for row in self._rows])
        probe = fit_probe(train.image[there], labels[there], len(_NAMES), PROBE, weights[there])
        depth = probe.depth(test.image, test.labels).cpu().numpy()
        metric = metrics_of(LINEAR_PROBE, classification_outcomes(test, depth), len(_NAMES))[0]
        is_wrong = np.array([row[label] != row["clean"] for row in self._rows])
        return metric, {
            "kept": float((weights > 0).float().mean()),
            "wrong": float(np.average(is_wrong, weights=weights.nan_to_num().numpy())),
            "accuracy": float(metric.value()[0]),
        }

    def arms(self, label: str, table: str, estimated: float) -> Iterator[Row]:
        """Each kind of weights, and what it adds to equal ones, with a 95 % interval.

        An arm of weights that are all 0 is `refused`, with the reason.
        """
        true = np.mean([row[label] != row["clean"] for row in self._rows])
        equal: Metric | None = None
        for name, sql in weightings(estimated, float(true)).items():
            arm: Row = {"labels": label, "weights": name}
            weighting = None if sql is None else SampleWeights((table,), sql)
            try:
                metric, facts = self.accuracy(label, weighting)
            except InputError as error:
                yield {**arm, "refused": str(error)}
                continue
            equal = equal or metric
            (gain,) = paired_differences([equal], [metric])
            gains = {"gain": gain.difference, "gain_low": gain.low, "gain_high": gain.high}
            yield {**arm, **facts, **gains}


def by_command(folder: Path, model: str, table: str) -> float:
    """The accuracy that `evaluate linear-probe --weights osa_weight` prints."""
    command = EvaluateLinearProbe(
        model=[model], data=[str(folder)], probe=PROBE, precision="fp32",
        scores=[table], weights="osa_weight",
    )  # fmt: skip
    accuracy = command.run().summary[0].metrics["lp_acc1"]
    assert accuracy is not None
    return accuracy


def study(data: Path, out: Path, passes: int = 8, seed: int = 0) -> Iterator[Row]:
    """A row for each set of labels and kind of weights."""
    photographs = corpora.Photographs.read(data, seed)
    model = photographs.estimator(data, out, passes, seed)
    splits = {"train": photographs.scored, "test": photographs.held_out}
    folder = write_set(out / "set", data, splits, LABELS[0])
    probes = Probes(folder, model, photographs.scored)
    for label in LABELS:
        write_corpus(photographs.scored, label, data, out / label, seed)
        table = str(out / f"{label}.parquet")
        score = Score(shards=[str(out / label)], out=table, model=model, precision="fp32")
        yield from probes.arms(label, table, score.run().summary.noise_rate.value)
    printed = by_command(folder, model, str(out / f"{LABELS[0]}.parquet"))
    return {"by_command": printed, "images": photographs.settings()}


if __name__ == "__main__":
    benchmark(study)
