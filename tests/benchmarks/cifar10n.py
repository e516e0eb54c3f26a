"""Real human errors: what scores, rates and audits say of CIFAR-10N.

    python tests/benchmarks/cifar10n.py --data FOLDER --out runs/cifar10n
        [--record docs/records/cifar10n.json]

FOLDER is as `cifar10n_corpora.py` says. A small CLIP is trained from random weights on half of the
training images and the test images, with captions of the true classes; it never sees the other
half, which is captioned by what people said and scored. What is made on the way lies in --out and
is not made again. Half an hour on two idle cores, nearly all of it the training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from cifar10n_corpora import LABELS, MODEL_CONFIG, Row, halves, write_corpus
from cleanlab.rank import get_label_quality_scores
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.score import Score
from records import make_record, write_record
from simulated_audits import Audits, Corpus
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import cross_val_predict

from ncclean.config import ScoreOptions
from ncclean.data.options import LoaderOptions
from ncclean.evaluation.calibration import BINS, calibration
from ncclean.scoring.recalibration import recalibrated
from ncclean.storage.summary import ScoreSummary
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.options import TrainOptions

ANSWERS = (300, 1_000)
CALIBRATED_ON = ("similarity", "neg_clip_loss")
_FOLDS = 5


def estimator(folder: Path, learnt: list[Row], out: Path, seed: int) -> str:
    """Train from random weights, as anybody would; the model's name."""
    write_corpus(learnt, "clean", folder, out / "learnt", seed)
    config = out / "model.json"
    if not config.exists():  # its time is part of what the training goes on from
        config.write_text(json.dumps(MODEL_CONFIG))
    Finetune(
        method="clip",
        shards=[str(out / "learnt")],
        out=str(out / "est"),
        model=str(config),
        init="random",
        batch_size=128,
        objective=ObjectiveOptions(epochs=8, learning_rate=1e-3),
        training=TrainOptions(weight_decay=0.05),
        loader=LoaderOptions(augment=False, decode_threads=1),
        precision="fp32",
        seed=seed,
    ).run()
    return f"local-dir:{out / 'est'}"


def scored(shards: Path, model: str, out: Path) -> dict[str, tuple[str, ScoreSummary]]:
    """The table by each score to calibrate on; the second one from the embeddings of the first."""
    tables = {}
    for name in CALIBRATED_ON:
        table = str(out / f"{shards.name}-{name}.parquet")
        embeddings = str(out / f"{shards.name}-embeddings")
        first = name == CALIBRATED_ON[0]
        command = Score(
            shards=[str(shards) if first else embeddings],
            out=table,
            **({"model": model, "precision": "fp32"} if first else {"scale": model}),
            shift=0.2,
            calibrate_on=name,  # type: ignore[arg-type]
            options=ScoreOptions(embeddings=embeddings if first else None),
        )
        tables[name] = table, command.run().summary
    return tables


def detection(
    table: str, embeddings: Path, rows: list[Row], label: str
) -> Iterator[dict[str, Any]]:
    """AUROC and average precision of each score, and of cleanlab's ranking."""
    for each in EvaluateNoise(scores=[table]).run()["scores"]:
        report = next(kind["report"] for kind in each["kinds"] if kind["kind"] == "all")
        figures = {name: report[name] for name in ("auroc", "average_precision", "f1")}
        yield {"label": label, "score": each["column"], **figures}
    quality, is_wrong = _cleanlab(embeddings, rows, label)
    yield {
        "label": label,
        "score": "cleanlab",
        "auroc": float(roc_auc_score(is_wrong, -quality)),
        "average_precision": float(average_precision_score(is_wrong, -quality)),
        "f1": None,
    }


def _cleanlab(embeddings: Path, rows: list[Row], label: str) -> tuple[np.ndarray, np.ndarray]:
    """Its self-confidence by a logistic regression of the given labels, out of sample."""
    files = sorted((embeddings / "img_emb").glob("*.npy"))
    features = np.concatenate([np.load(file) for file in files]).astype(np.float32)
    classes, labels = np.unique([row[label] for row in rows], return_inverse=True)
    model = LogisticRegression(max_iter=300)
    probabilities = cross_val_predict(model, features, labels, cv=_FOLDS, method="predict_proba")
    assert probabilities.shape == (len(rows), len(classes))
    quality = get_label_quality_scores(labels, probabilities)
    return quality, np.array([row[label] != row["clean"] for row in rows])


def rates(table: str, summary: ScoreSummary, label: str, name: str) -> dict[str, Any]:
    """The estimated noise rate beside the true one, and how far the probabilities are off."""
    corpus = _corpus(table)
    kept = corpus.probability < 0.5
    return {
        "label": label,
        "calibrated_on": name,
        "pairs": len(kept),
        "true": float(corpus.is_mismatched.mean()),
        "estimated": summary.noise_rate,
        "low": summary.noise_rate_low,
        "high": summary.noise_rate_high,
        "calibration_error": _error(corpus.probability, corpus.is_mismatched),
        "expected_kept": float(corpus.probability[kept].sum()),
        "mismatched_kept": int(corpus.is_mismatched[kept].sum()),
    }


def audited(table: str, label: str, answers: int, draws: int, seed: int) -> dict[str, Any]:
    """Audits by the true labels: coverage, and the calibration error after each."""
    corpus = _corpus(table)
    audits, truths = Audits(corpus, answers), corpus.truths()
    drawn = audits.draw(draws, np.random.default_rng([seed, answers]))
    errors = []
    for places in drawn:
        y, p = corpus.is_mismatched[places], corpus.probability[places]
        moved = recalibrated(p, y, audits.weights(places))
        errors.append(_error(moved(corpus.probability), corpus.is_mismatched))
    estimates = audits.estimates(drawn)
    covered, widths = {}, {}
    for name, truth in truths.items():
        if truth is None:  # a rule that flags nothing, or everything
            continue
        each = estimates[name]
        covered[name] = int(((each.low <= truth) & (truth <= each.high)).sum())
        widths[name] = float((each.high - each.low).mean())
    return {
        "label": label,
        "answers": answers,
        "draws": draws,
        "true": truths["noise_rate"],
        "covered": covered,
        "width": widths,
        "error_before": _error(corpus.probability, corpus.is_mismatched),
        "error_after": float(np.mean(errors)),
        "error_after_90": float(np.quantile(errors, 0.9)),
    }


def _corpus(table: str) -> Corpus:
    columns = ["noise_probability", "is_noisy", "disncl_clean"]
    rows = pq.read_table(table, columns=columns)
    probability, is_noisy, is_clean = (
        rows.column(name).to_numpy(zero_copy_only=False) for name in columns
    )
    flags = {"p >= 0.5": probability >= 0.5, "not disncl_clean": ~is_clean.astype(bool)}
    return Corpus(probability.astype(np.float64), is_noisy.astype(bool), flags)


def _error(probability: np.ndarray, is_mismatched: np.ndarray) -> float:
    """The expected calibration error that `evaluate noise` prints."""
    tenth = np.minimum((BINS * probability).astype(int), BINS - 1)
    cell = 2 * tenth + is_mismatched
    sums = [
        np.bincount(cell, weights, minlength=2 * BINS).reshape(BINS, 2)
        for weights in (None, probability, probability**2)
    ]
    return calibration(*sums, ["human"]).expected_error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    out, seed = arguments.out, arguments.seed
    out.mkdir(parents=True, exist_ok=True)
    learnt, rows = halves(arguments.data, seed)
    model = estimator(arguments.data, learnt, out, seed)
    tables: dict[str, list[dict[str, Any]]] = {"detection": [], "rates": [], "audits": []}
    for label in LABELS:
        write_corpus(rows, label, arguments.data, out / label, seed)
        by_score = scored(out / label, model, out)
        for name, (table, summary) in by_score.items():
            tables["rates"].append(rates(table, summary, label, name))
        table, _ = by_score[CALIBRATED_ON[0]]
        tables["detection"] += detection(table, out / f"{label}-embeddings", rows, label)
        for answers in ANSWERS:
            tables["audits"].append(audited(table, label, answers, arguments.draws, seed))
        for name, made in tables.items():
            print(json.dumps({name: [row for row in made if row["label"] == label]}), flush=True)
    if arguments.record is not None:
        settings = {"draws": arguments.draws, "learnt": len(learnt), "scored": len(rows)}
        made = tables.pop("rates")
        write_record(arguments.record, make_record(made, settings=settings, seeds=[seed], **tables))


if __name__ == "__main__":
    main()
