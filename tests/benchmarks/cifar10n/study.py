"""Real human errors: what scores, rates, audits and repair make of CIFAR-10N.

    python tests/benchmarks cifar10n.study --data FOLDER --out runs/cifar10n
        [--record docs/records/cifar10n.json]

FOLDER is as `cifar10n.corpora` says. A small CLIP, the estimator, is trained from random weights
on half of the training images and half of the test images, with captions of the true classes. The
other training images, which it never sees, are captioned by what people said and scored. A second
CLIP learns these captions as they are and is repaired; the other test images, which no model sees,
tell what that is worth. What is made on the way lies in --out and is not made again. About an hour
on two idle cores, nearly all of it the training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncclean_pipelines.score import Score
from records import Row, benchmark

from cifar10n.corpora import LABELS, Photographs, train, write_corpus, write_word_classes
from cifar10n.figures import audited, detection, near_misses, rates
from cifar10n.repair import LABEL, REPAIR, HeldOut, repaired
from ncclean.base.config import ScoreOptions


def study(
    data: Path, out: Path, passes: int = 8, draws: int = 500, patient_passes: int = 5,
    steps: int = 50, repeats: int = 1, seed: int = 0,
) -> Iterator[Row]:  # fmt: skip
    """The rates of each set of labels are the rows; all else are facts of the record."""
    photographs = Photographs.read(data, seed)
    model = photographs.estimator(data, out, passes, seed)
    words = write_word_classes(out / "words.txt")
    facts: dict[str, list[Any]] = {"detection": [], "near_misses": [], "audits": [], "repair": []}
    tables = {}
    for label in LABELS:
        write_corpus(photographs.scored, label, data, out / label, seed)
        table, embeddings = str(out / f"{label}.parquet"), out / f"{label}-embeddings"
        options = ScoreOptions(
            embeddings=str(embeddings), words=True, word_classes=str(words), words_per_caption=9
        )
        command = Score(
            shards=[str(out / label)], out=table, model=model, precision="fp32",
            calibrate_on="similarity", options=options,
        )  # fmt: skip
        yield rates(table, command.run().summary, label)
        facts["detection"] += detection(table, embeddings, photographs.scored, label)
        facts["near_misses"].append(near_misses(table, label))
        facts["audits"].append(audited(table, label, 300, draws, seed))
        tables[label] = table
    patient = train(out / LABEL, patient_passes, out / "patient", seed)
    held_out = HeldOut(data, photographs.held_out)
    facts["repair"] += repaired(REPAIR, steps, patient, tables[LABEL], held_out, out, repeats)
    return {**facts, "images": photographs.settings()}


if __name__ == "__main__":
    benchmark(study)
