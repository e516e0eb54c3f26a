"""What forgetting without negative texts is worth to a model that has learnt people's errors.

    python tests/benchmarks cifar10n.forgetting --data FOLDER --out runs/cifar10n-forgetting
        [--record docs/records/cifar10n-forgetting.json]

FOLDER is as `cifar10n.corpora` says. A small CLIP learns the `worse` labels from random weights, as
in `cifar10n.study`, and arms of `repair.arms` go on from it with the same steps: `negative="none"`
beside what it is to be compared with, above all the same pairs left out. What lies in --out is not
made again; an hour and a half of one core, two thirds of it the training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ncclean_pipelines.score import Score
from records import Row, benchmark
from repair.arms import FORGETTING

from cifar10n.corpora import Photographs, train, write_corpus
from cifar10n.repair import LABEL, HeldOut, repaired

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
