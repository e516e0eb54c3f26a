"""What the objectives do to a model that has learnt people's errors.

    python tests/benchmarks cifar10n.repair --data FOLDER --out runs/cifar10n-forgetting
        [--record docs/records/cifar10n-forgetting.json]

The patient is trained on the pairs with the `worse` labels, from random weights. Each arm goes on
from it with the same number of steps, and all are measured on photographs that no model has seen.
`cifar10n.study` compares objectives. As a command: what forgetting without negative texts is worth,
`negative="none"` beside what it is to be compared with, above all the same pairs left out; an hour
and a half of one core, two thirds of it the patient's training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from arms import CLEAN, CLIP_ON_ALL, LEFT_ALONE, ORACLE, SELECTED, WEIGHTED, Arm, Training, gain
from arms import selected as select
from corpora import encoded_images, image_reader
from ncclean_pipelines.score import Score
from records import Row, benchmark
from repair.arms import FORGETTING

from cifar10n import corpora
from cifar10n.corpora import CLASS_NAMES, TEMPLATES, Photographs, train, write_corpus
from ncclean.evaluation.ranking import classifier_weights
from ncclean.models.estimator import Estimator

LABEL = "worse"
_CLASSES = list(CLASS_NAMES)
# 40 is the share of wrong labels.
REPAIR = (
    Arm(name=CLIP_ON_ALL),
    Arm(name="clip, selected", policy=SELECTED),
    Arm(name="osa", method="osa", policy=WEIGHTED),
    Arm(name="ncu, forget 40 %", method="ncu", ncu={"forget_percent": 40.0}),
    Arm(name="rince", method="rince"),
    Arm(name="ncu, nothing to forget", method="ncu", ncu={"forget_percent": 0.0}),
    Arm(name=ORACLE, policy=CLEAN),
)


class HeldOut:
    """Zero-shot classification of photographs by the templates of the captions."""

    def __init__(self, data: Path, rows: Sequence[corpora.Row]) -> None:
        read = image_reader(data)
        self._images = [read(row["file"]) for row in rows]
        self._labels = torch.tensor([_CLASSES.index(row["clean"]) for row in rows])

    def correct(self, model: str) -> np.ndarray:
        """(N,) whether each photograph is told by the model."""
        estimator = Estimator.load(model, None, precision="fp32")
        templates = [template.replace("{}", "{c}") for template in TEMPLATES]
        weights = classifier_weights(estimator.encode_text, _CLASSES, templates)
        classes = (encoded_images(estimator, self._images) @ weights.T).argmax(dim=1)
        return np.asarray(classes == self._labels)


def repaired(
    arms: Sequence[Arm], steps: int, patient: str, table: str, held_out: HeldOut, out: Path,
    repeats: int,
) -> Iterator[Row]:  # fmt: skip
    """A row for the patient and for each arm, on the pairs of `LABEL` with their score table.

    `gain` is over the first arm, `clip` on all pairs with the same seed, with a 95 % interval over
    photographs.
    """
    training = Training(steps=steps, batch_size=256, learning_rate=2e-4)
    before = held_out.correct(patient)
    for seed in range(repeats):
        baseline: np.ndarray | None = None
        for arm in arms:
            selection, facts = None, {}
            if arm.policy is not None:
                path = out / "selections" / f"{arm.file_name}.parquet"
                selection, facts = select(arm.policy, table, path)
            folder = out / "arms" / f"{arm.file_name}-{steps}-{seed}"
            model = training.train(arm, patient, out / LABEL, folder, seed, selection=selection)
            correct = held_out.correct(model)
            if baseline is None:
                baseline = correct
                yield {"arm": LEFT_ALONE, "seed": seed, **gain(before, baseline)}
            yield {"arm": arm.name, "seed": seed, **facts, **gain(correct, baseline)}


_ARMS = [arm for arm in FORGETTING if arm.judge == "estimator"]


def forgetting(
    data: Path, out: Path, patient_passes: int = 5, steps: int = 50, repeats: int = 1, seed: int = 0
) -> Iterator[Row]:
    """A row for each arm and repetition."""
    photographs = Photographs.read(data, seed)
    write_corpus(photographs.scored, LABEL, data, out / LABEL, seed)
    patient = train(out / LABEL, patient_passes, out / "patient", seed)
    table = str(out / "truth.parquet")  # of which the oracle reads what is wrong
    Score(shards=[str(out / LABEL)], out=table, model=patient, precision="fp32").run()
    held_out = HeldOut(data, photographs.held_out)
    yield from repaired(_ARMS, steps, patient, table, held_out, out, repeats)
    return {"seeds": list(range(repeats))}


if __name__ == "__main__":
    benchmark(forgetting)
