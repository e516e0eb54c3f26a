"""Scores, rates and audits against the labels that people gave; see `cifar10n.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from cifar10n_corpora import Row
from cleanlab.rank import get_label_quality_scores
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from simulated_audits import Audits, Corpus
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import cross_val_predict

from ncclean.evaluation.calibration import BINS, calibration
from ncclean.scoring.recalibration import recalibrated
from ncclean.storage.summary import ScoreSummary

_FOLDS = 5


def detection(
    table: str, embeddings: Path, rows: list[Row], label: str
) -> Iterator[dict[str, Any]]:
    """AUROC and average precision of each score, and of cleanlab's ranking."""
    for score in EvaluateNoise(scores=[table]).run().summary.scores:
        report = score.kinds[0].report  # of all noise
        figures = {name: getattr(report, name) for name in ("auroc", "average_precision", "f1")}
        yield {"label": label, "score": score.column, "pairs": score.pairs, **figures}
    quality, is_wrong = _cleanlab(embeddings, rows, label)
    yield {
        "label": label,
        "score": "cleanlab",
        "pairs": len(rows),
        "auroc": float(roc_auc_score(is_wrong, -quality)),
        "average_precision": float(average_precision_score(is_wrong, -quality)),
        "f1": None,
    }


def image_embeddings(folder: Path) -> np.ndarray:
    """(N, d) float32, in the order of the shards."""
    files = sorted((folder / "img_emb").glob("*.npy"))
    return np.concatenate([np.load(file) for file in files]).astype(np.float32)


def _cleanlab(embeddings: Path, rows: list[Row], label: str) -> tuple[np.ndarray, np.ndarray]:
    """Its self-confidence by a logistic regression of the given labels, out of sample."""
    features = image_embeddings(embeddings)
    classes, labels = np.unique([row[label] for row in rows], return_inverse=True)
    model = LogisticRegression(max_iter=300)
    probabilities = cross_val_predict(model, features, labels, cv=_FOLDS, method="predict_proba")
    assert probabilities.shape == (len(rows), len(classes))
    quality = get_label_quality_scores(labels, probabilities)
    return quality, np.array([row[label] != row["clean"] for row in rows])


def rates(table: str, summary: ScoreSummary, label: str, name: str) -> dict[str, Any]:
    """The estimated noise rate beside the true one, and how far the probabilities are off."""
    corpus = human_corpus(table)
    kept = corpus.probability < 0.5
    return {
        "label": label,
        "calibrated_on": name,
        "pairs": len(kept),
        "true": float(corpus.is_mismatched.mean()),
        "estimated": summary.noise_rate,
        "low": summary.noise_rate_low,
        "high": summary.noise_rate_high,
        "calibration_error": calibration_error(corpus.probability, corpus.is_mismatched),
        "expected_kept": float(corpus.probability[kept].sum()),
        "mismatched_kept": int(corpus.is_mismatched[kept].sum()),
    }


@dataclass(frozen=True)
class NearMisses:
    """(N,) probabilities of a mismatch, of a wrong word (0 where no word was tried), the truth."""

    mismatched: np.ndarray
    wrong_word: np.ndarray
    is_wrong: np.ndarray
    tried: float

    @classmethod
    def read(cls, table: str) -> NearMisses:
        """From a score table of `--words`."""
        names = ["noise_probability", "near_miss_probability", "is_noisy", "word_margin"]
        columns = pq.read_table(table, columns=names)
        p, q, truth = (
            columns.column(name).to_numpy(zero_copy_only=False).astype(np.float64)
            for name in names[:3]
        )
        margin = columns.column("word_margin")
        return cls(p, np.nan_to_num(q), truth > 0, 1 - margin.null_count / len(margin))

    @property
    def either(self) -> np.ndarray:
        """Of a mismatch, or of a wrong word in what is no mismatch."""
        either: np.ndarray = 1 - (1 - self.mismatched) * (1 - self.wrong_word)
        return either


def near_misses(table: str, summary: ScoreSummary, label: str, words: str) -> dict[str, Any]:
    """What the second null sees of people's errors, alone and beside the first."""
    found = NearMisses.read(table)
    probabilities = {
        "noise_probability": found.mismatched,
        "near_miss_probability": found.wrong_word,
        "either": found.either,
    }
    return {
        "label": label,
        "words": words,
        "tried": found.tried,
        "true": float(found.is_wrong.mean()),
        "noise_rate": summary.noise_rate,
        "near_miss_rate": summary.near_miss_rate,
        "near_miss_low": summary.near_miss_rate_low,
        "near_miss_high": summary.near_miss_rate_high,
        "rules": {
            name: _judged(probability, found.is_wrong)
            for name, probability in probabilities.items()
        },
    }


def _judged(probability: np.ndarray, is_wrong: np.ndarray) -> dict[str, float]:
    """`expected` share of errors, what a rule at one half does, and the calibration error."""
    flagged = probability >= 0.5
    return {
        "expected": float(probability.mean()),
        "recall": float(flagged[is_wrong].mean()),
        "precision": float(is_wrong[flagged].mean()) if flagged.any() else 1.0,
        "calibration_error": calibration_error(probability, is_wrong),
    }


def audited(table: str, label: str, answers: int, draws: int, seed: int) -> dict[str, Any]:
    """Audits by the true labels: coverage, and the calibration error after each."""
    corpus = human_corpus(table)
    audits, truths = Audits(corpus, answers), corpus.truths()
    drawn = audits.draw(draws, np.random.default_rng([seed, answers]))
    errors = []
    for places in drawn:
        y, p = corpus.is_mismatched[places], corpus.probability[places]
        moved = recalibrated(p, y, audits.weights(places))
        errors.append(calibration_error(moved(corpus.probability), corpus.is_mismatched))
    estimates = audits.estimates(drawn)
    covered, widths = {}, {}
    for name, truth in truths.items():
        if truth is None:  # a rule that flags nothing, or everything
            continue
        estimate = estimates[name]
        covered[name] = int(((estimate.low <= truth) & (truth <= estimate.high)).sum())
        widths[name] = float((estimate.high - estimate.low).mean())
    return {
        "label": label,
        "answers": answers,
        "draws": draws,
        "true": truths["noise_rate"],
        "covered": covered,
        "width": widths,
        "error_before": calibration_error(corpus.probability, corpus.is_mismatched),
        "error_after": float(np.mean(errors)),
        "error_after_90": float(np.quantile(errors, 0.9)),
    }


def audited_threshold(table: str, answers: int, seed: int) -> float:
    """The noise probability that one audit moves to one half."""
    corpus = human_corpus(table)
    audits = Audits(corpus, answers)
    (places,) = audits.draw(1, np.random.default_rng([seed, answers]))
    y, p = corpus.is_mismatched[places], corpus.probability[places]
    moved = recalibrated(p, y, audits.weights(places))
    return float(moved.inverse(np.array([0.5]))[0])


def human_corpus(table: str) -> Corpus:
    """A score table as what `simulated_audits` audits."""
    columns = ["noise_probability", "is_noisy", "disncl_clean"]
    rows = pq.read_table(table, columns=columns)
    probability, is_noisy, is_clean = (
        rows.column(name).to_numpy(zero_copy_only=False) for name in columns
    )
    flags = {"p >= 0.5": probability >= 0.5, "not disncl_clean": ~is_clean.astype(bool)}
    return Corpus(probability.astype(np.float64), is_noisy.astype(bool), flags)


def calibration_error(probability: np.ndarray, is_mismatched: np.ndarray) -> float:
    """The expected calibration error that `evaluate noise` prints."""
    tenth = np.minimum((BINS * probability).astype(int), BINS - 1)
    cell = 2 * tenth + is_mismatched
    sums = [
        np.bincount(cell, weights, minlength=2 * BINS).reshape(BINS, 2)
        for weights in (None, probability, probability**2)
    ]
    return calibration(*sums, ["human"]).expected_error
