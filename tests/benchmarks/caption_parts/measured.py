"""What the columns of `--caption-parts` tell about captions of which the truth is known."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

_BINS = 10


def noisy_parts(shards: Path) -> dict[str, int | None]:
    """Which part of each caption the truth calls noisy, by uid."""
    truth: dict[str, int | None] = {}
    for path in sorted(shards.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".json"):
                    record = json.load(tar.extractfile(member))  # type: ignore[arg-type]
                    truth[record["uid"]] = record.get("noisy_part")
    return truth


def rows_of(table: str) -> dict[str, np.ndarray]:
    """The columns of the scored pairs."""
    columns = (
        "uid, is_noisy, similarity, noise_probability, part_noise_probability, part_count, "
        "worst_part_number, mean_part_similarity, part_similarities, part_log_odds"
    )
    found = duckdb.sql(
        f"SELECT {columns} FROM '{table}' WHERE status = 'ok' ORDER BY uid"
    ).fetchnumpy()
    return {name: np.asarray(np.ma.filled(values)) for name, values in found.items()}


def detected(table: str, truth: Mapping[str, int | None]) -> dict[str, Any]:
    """How well each score tells captions with a wrong part, beside what costs as much.

    `worst cosine` is the least cosine of a part, which takes the same encoding. `named` is the
    share of flagged captions whose wrong part is the one that is named.
    """
    rows = rows_of(table)
    noisy = rows["is_noisy"].astype(bool)
    probability = rows["part_noise_probability"].astype(float)
    flagged = probability >= 0.5
    scores = {
        "part_noise_probability": probability,
        "worst cosine": np.array([-min(one) for one in rows["part_similarities"]]),
        "mean cosine": -rows["mean_part_similarity"],
        "whole cosine": -rows["similarity"],
        "whole noise_probability": rows["noise_probability"],
    }
    places = [truth[uid] for uid in rows["uid"]]
    known = np.array([place is not None for place in places])
    named = rows["worst_part_number"] == np.array([-1 if p is None else p for p in places])
    result: dict[str, Any] = {
        "pairs": len(noisy),
        "noisy": int(noisy.sum()),
        "parts": float(rows["part_count"].mean()),
        "mean_probability": float(probability.mean()),
        "calibration_error": _calibration_error(probability, noisy),
        "flagged": int(flagged.sum()),
        "false": int((flagged & ~noisy).sum()),
        "unknown": int(np.isnan(probability).sum()),
    }
    if noisy.any():
        result["auroc"] = {name: roc_auc_score(noisy, score) for name, score in scores.items()}
        result["precision"] = {
            name: average_precision_score(noisy, score) for name, score in scores.items()
        }
        cosines = [np.asarray(one) for one in rows["part_similarities"]]
        by_cosine = np.array([one.argmin() for one in cosines])
        of_cosine = by_cosine == np.array([-1 if p is None else p for p in places])
        found = flagged & noisy & known
        result["named"] = float(named[found].mean()) if found.any() else None
        result["named_of_all"] = float(named[noisy & known].mean()) if known.any() else None
        result["named_by_cosine"] = float(of_cosine[noisy & known].mean()) if known.any() else None
        if known.any():
            result["oracle"] = _oracle(rows, places, noisy)
    return result


def _calibration_error(probability: np.ndarray, noisy: np.ndarray) -> float:
    """sum over tenths of |mean probability - share of noisy pairs|, weighted by pairs."""
    bins = np.clip((probability * _BINS).astype(int), 0, _BINS - 1)
    return float(
        sum(
            abs(probability[bins == one].mean() - noisy[bins == one].mean()) * (bins == one).mean()
            for one in np.unique(bins)
        )
    )


def _oracle(rows: Mapping[str, np.ndarray], places: list[Any], noisy: np.ndarray) -> dict[str, Any]:
    """The better of two classifiers that learn from the truth, in five folds over captions."""
    caption = np.repeat(np.arange(len(places)), [len(one) for one in rows["part_similarities"]])
    cosine = np.concatenate([np.asarray(one, float) for one in rows["part_similarities"]])
    odds = np.concatenate([np.asarray(one, float) for one in rows["part_log_odds"]])
    number = np.concatenate([np.arange(len(one)) for one in rows["part_similarities"]])
    labels = number == np.array([-1 if p is None else p for p in places])[caption]
    counts = np.bincount(caption)[caption]
    mean = np.bincount(caption, cosine)[caption] / counts
    mean_odds = np.bincount(caption, odds)[caption] / counts
    whole = rows["similarity"][caption]
    features = np.stack(
        [cosine, odds, cosine - mean, odds - mean_odds, mean, mean_odds, whole, counts], axis=1
    )
    best: dict[str, Any] = {}
    for model in (
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        HistGradientBoostingClassifier(random_state=0),
    ):
        judged = np.zeros(len(labels))
        for learnt, rest in GroupKFold(5).split(features, labels, caption):
            model.fit(features[learnt], labels[learnt])
            judged[rest] = model.predict_proba(features[rest])[:, 1]
        of_caption = np.ones(len(places))
        np.multiply.at(of_caption, caption, 1 - judged)
        score = {
            "auroc": roc_auc_score(noisy, 1 - of_caption),
            "precision": average_precision_score(noisy, 1 - of_caption),
        }
        best = max(best or score, score, key=lambda one: one["precision"])
    return best
