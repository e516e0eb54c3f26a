"""Scores, rates and audits against the labels that people gave; see `cifar10n.study`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from audits.simulated import Audits, Corpus, covered, width
from cleanlab.rank import get_label_quality_scores
from corpora import read_embeddings
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from records import Row
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import cross_val_predict

from cifar10n import corpora
from ncclean.evaluation.noise_evaluation import BINS, calibration
from ncclean.scoring.recalibration import recalibrated
from ncclean.storage.summary import ScoreSummary

_FOLDS = 5


def detection(table: str, embeddings: Path, rows: list[corpora.Row], label: str) -> Iterator[Row]:
    """AUROC and average precision of each score, and of cleanlab's ranking."""
    for score in EvaluateNoise(scores=[table]).run().summary.scores:
        report = score.kinds[0].report  # of all noise
        figures = {name: getattr(report, name) for name in ("auroc", "average_precision")}
        yield {"label": label, "score": score.column, "pairs": score.pairs, **figures}
    quality = _cleanlab(embeddings, rows, label)
    is_wrong = np.array([row[label] != row["clean"] for row in rows])
    yield {
        "label": label, "score": "cleanlab", "pairs": len(rows),
        "auroc": float(roc_auc_score(is_wrong, -quality)),
        "average_precision": float(average_precision_score(is_wrong, -quality)),
    }  # fmt: skip


def _cleanlab(embeddings: Path, rows: list[corpora.Row], label: str) -> np.ndarray:
    """Its self-confidence by a logistic regression of the labels, out of sample."""
    features, _, _ = read_embeddings(embeddings)
    _, labels = np.unique([row[label] for row in rows], return_inverse=True)
    model = LogisticRegression(max_iter=300)
    probabilities = cross_val_predict(model, features, labels, cv=_FOLDS, method="predict_proba")
    return get_label_quality_scores(labels, probabilities)


def rates(table: str, summary: ScoreSummary, label: str) -> Row:
    """The estimated noise rate beside the true one."""
    corpus = human_corpus(table)
    return {
        "label": label, "calibrated_on": "similarity", "pairs": len(corpus.is_mismatched),
        "true": float(corpus.is_mismatched.mean()), "estimated": summary.noise_rate.value,
        "low": summary.noise_rate.low, "high": summary.noise_rate.high,
    }  # fmt: skip


def near_misses(table: str, label: str) -> Row:
    """What `--words` adds to the noise probability.

    `found` is the share of people's errors with a probability of one half, of a mismatch alone and
    of either a mismatch or a wrong word; a pair without a word to try has none.
    """
    names = ("noise_probability", "near_miss_probability", "is_noisy")
    rows = pq.read_table(table, columns=list(names))
    mismatched, near_miss, noisy = (
        rows.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in names
    )
    is_wrong = noisy > 0
    either = 1 - (1 - mismatched) * (1 - np.nan_to_num(near_miss))
    return {
        "label": label, "words": "of the captions",
        "tried": float((~np.isnan(near_miss)).mean()),
        "found": float((mismatched[is_wrong] >= 0.5).mean()),
        "found_either": float((either[is_wrong] >= 0.5).mean()),
        "precision_either": float(is_wrong[either >= 0.5].mean()),
    }  # fmt: skip


def audited(table: str, label: str, answers: int, draws: int, seed: int) -> Row:
    """Audits by the true labels: coverage, and the calibration error after each."""
    corpus = human_corpus(table)
    audits = Audits(corpus, answers)
    drawn = audits.draw(draws, np.random.default_rng([seed, answers]))
    errors = []
    for _, places in drawn:
        y, p = corpus.is_mismatched[places], corpus.probability[places]
        moved = recalibrated(p, y, audits.weights(places))
        errors.append(calibration_error(moved(corpus.probability), corpus.is_mismatched))
    estimates = audits.estimates(drawn, alone=True)
    # A rule that flags nothing, or everything, has figures without a truth.
    truths = {name: truth for name, truth in corpus.truths().items() if truth is not None}
    return {
        "label": label, "answers": answers, "draws": draws, "true": truths["noise_rate"],
        "covered": {name: covered(estimates[name], truth) for name, truth in truths.items()},
        "width": {name: width(estimates[name]) for name in truths},
        "error_before": calibration_error(corpus.probability, corpus.is_mismatched),
        "error_after": float(np.mean(errors)),
        "error_after_90": float(np.quantile(errors, 0.9)),
    }  # fmt: skip


def human_corpus(table: str) -> Corpus:
    """A score table as a corpus to audit."""
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
