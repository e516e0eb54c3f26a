"""Real human errors: what scores, rates, audits and repair make of CIFAR-10N.

    python tests/benchmarks cifar10n.study --data FOLDER --out runs/cifar10n
        [--record docs/records/cifar10n.json]

FOLDER is as `corpora.py` says. A small CLIP, the estimator, is trained from random weights
on half of the training images and half of the test images, with captions of the true classes. The
other training images, which it never sees, are captioned by what people said and scored. A second
CLIP learns these captions as they are and is repaired; the other test images, which no model sees,
tell what that is worth. What is made on the way lies in --out and is not made again. About an hour
on two idle cores, nearly all of it the training.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ncclean_pipelines.score import Score
from records import make_record, write_record

from cifar10n.corpora import LABELS, Row, write_corpus, write_word_classes
from cifar10n.estimator import Beginning, parser, train
from cifar10n.figures import audited, detection, near_misses, rates
from cifar10n.repair import LABEL, HeldOut, learnt_by_heart, loaded, repair, scored_by_patient
from ncclean.base.config import ScoreOptions
from ncclean.storage.summary import ScoreSummary

ANSWERS = (300, 1_000)
CALIBRATED_ON = ("similarity", "neg_clip_loss")
Tables = dict[str, list[dict[str, Any]]]


def scored(shards: Path, model: str, words: Path, out: Path) -> dict[str, tuple[str, ScoreSummary]]:
    """The table by each score to calibrate on; the second one from the embeddings of the first."""
    tables = {}
    for name in CALIBRATED_ON:
        table = str(out / f"{shards.name}-{name}.parquet")
        embeddings = str(out / f"{shards.name}-embeddings")
        first = name == CALIBRATED_ON[0]
        options = ScoreOptions(
            embeddings=embeddings, words=True, word_classes=str(words), words_per_caption=9
        )
        command = Score(
            shards=[str(shards) if first else embeddings],
            out=table,
            **({"model": model, "precision": "fp32"} if first else {"scale": model}),
            calibrate_on=name,  # type: ignore[arg-type]
            options=options if first else ScoreOptions(),
            overwrite=not first,  # takes seconds
        )
        tables[name] = table, command.run().summary
    return tables


def scored_with_shipped_words(shards: Path, model: str, out: Path) -> tuple[str, ScoreSummary]:
    """The table with `--words` as it comes."""
    table = str(out / f"{shards.name}-words.parquet")
    options = ScoreOptions(words=True)
    command = Score(
        shards=[str(shards)], out=table, model=model, precision="fp32",
        calibrate_on="similarity", options=options,
    )  # fmt: skip
    return table, command.run().summary


def of_label(
    label: str, rows: list[Row], model: str, arguments: argparse.Namespace
) -> tuple[Tables, str]:
    """What is said of one set of labels, and the score table."""
    out, seed = arguments.out, arguments.seed
    write_corpus(rows, label, arguments.data, out / label, seed)
    words = out / "words.txt"
    if not words.exists():
        write_word_classes(words)
    by_score = scored(out / label, model, words, out)
    table, summary = by_score[CALIBRATED_ON[0]]
    shipped = scored_with_shipped_words(out / label, model, out)
    found: Tables = {
        "rates": [rates(*by_score[name], label, name) for name in by_score],
        "detection": list(detection(table, out / f"{label}-embeddings", rows, label)),
        "near_misses": [
            near_misses(table, summary, label, "of the captions"),
            near_misses(*shipped, label, "as shipped"),
        ],
        "audits": [audited(table, label, answers, arguments.draws, seed) for answers in ANSWERS],
    }
    return found, table


def main() -> None:
    arguments = _parse()
    out, seed = arguments.out, arguments.seed
    begun = Beginning.of(arguments)
    rows, model = begun.scored, begun.model
    tables: Tables = {}
    score_tables = {}
    for label in LABELS:
        found, score_tables[label] = of_label(label, rows, model, arguments)
        print(json.dumps(found), flush=True)
        for name, of_table in found.items():
            tables.setdefault(name, []).extend(of_table)
    patient = train(out / LABEL, arguments.patient_passes, out / "patient", seed)
    by_itself, embeddings = scored_by_patient(out / LABEL, patient, out)
    heart = learnt_by_heart(patient, embeddings, rows)
    print(json.dumps(heart), flush=True)
    judges = {"estimator": score_tables[LABEL], "itself": by_itself}
    photographs = HeldOut(arguments.data, begun.held_out)
    tables["repair"] = []
    for row in repair(
        judges, patient, out / LABEL, photographs, out, arguments.steps, arguments.repeats
    ):
        print(json.dumps(row), flush=True)
        tables["repair"].append(row)
    if arguments.record is not None:
        counts = {name: getattr(arguments, name) for name in ("passes", *_COUNTS)}
        settings = {**begun.settings(), **counts}
        more: dict[str, Any] = {
            "estimator_accuracy": float(photographs.correct(loaded(model)).mean()),
            "patient": heart,
        }
        record = make_record(tables.pop("rates"), settings=settings, seeds=[seed], **more, **tables)
        write_record(arguments.record, record)


_COUNTS = {
    "draws": (500, "simulated audits"),
    "patient_passes": (5, "of the patient's training"),
    "steps": (50, "of each arm"),
    "repeats": (1, "of each arm, with other seeds"),
}


def _parse() -> argparse.Namespace:
    options = parser(__doc__)
    for name, (count, help_text) in _COUNTS.items():
        flag = f"--{name.replace('_', '-')}"
        options.add_argument(flag, type=int, default=count, help=help_text)
    return options.parse_args()


if __name__ == "__main__":
    main()
