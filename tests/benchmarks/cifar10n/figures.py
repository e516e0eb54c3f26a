"""Scores, rates and audits against the labels that people gave; see `cifar10n.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from audits.simulated import Audits, Corpus
from cleanlab.rank import get_label_quality_scores
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import cross_val_predict

from cifar10n.corpora import Row
from ncclean.evaluation.noise_evaluation import BINS, calibration
from ncclean.scoring.recalibration import recalibrated
from ncclean.scoring.vague_rate import why_vague
from ncclean.storage.summary import ScoreSummary

_FOLDS = 5
_RANKED = ("similarity", "word_margin", "near_miss_score")  # higher is cleaner


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
        "estimated": summary.noise_rate.value,
        "low": summary.noise_rate.low,
        "high": summary.noise_rate.high,
        "calibration_error": calibration_error(corpus.probability, corpus.is_mismatched),
        "expected_kept": float(corpus.probability[kept].sum()),
        "mismatched_kept": int(corpus.is_mismatched[kept].sum()),
    }


def near_misses(table: str, summary: ScoreSummary, label: str, words: str) -> dict[str, Any]:
    """What `--words` adds: how its scores rank the pairs that have one, and what its null finds.

    `found` is the share of people's errors with a probability of one half, of a mismatch alone and
    of either a mismatch or a wrong word; a pair without a word to try has none.
    """
    rows = pq.read_table(table)
    values = {
        name: rows.column(name).to_numpy(zero_copy_only=False).astype(np.float64)
        for name in (*_RANKED, "noise_probability", "near_miss_probability", "is_noisy")
    }
    is_wrong, tried = values["is_noisy"] > 0, ~np.isnan(values["word_margin"])
    mismatched = values["noise_probability"]
    either = 1 - (1 - mismatched) * (1 - np.nan_to_num(values["near_miss_probability"]))
    rate = summary.near_miss_rate
    return {
        "label": label,
        "words": words,
        "tried": float(tried.mean()),
        "true": float(is_wrong.mean()),
        "noise_rate": summary.noise_rate.value,
        "near_misses": list(rate),
        "can_tell": rate.is_known and why_vague(rate) is None,
        "ranking": {
            name: {
                "auroc": float(roc_auc_score(is_wrong[tried], -values[name][tried])),
                "average_precision": float(
                    average_precision_score(is_wrong[tried], -values[name][tried])
                ),
            }
            for name in _RANKED
        },
        "found": float((mismatched[is_wrong] >= 0.5).mean()),
        "found_either": float((either[is_wrong] >= 0.5).mean()),
        "precision": float(is_wrong[mismatched >= 0.5].mean()),
        "precision_either": float(is_wrong[either >= 0.5].mean()),
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
