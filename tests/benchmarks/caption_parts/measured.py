"""What the columns of `--caption-parts` tell about captions of which the truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from corpora import samples_of
from ncclean_pipelines.score import Score
from sklearn.metrics import average_precision_score, roc_auc_score

from ncclean.base.config import ScoreOptions


def noisy_parts(shards: Path) -> dict[str, int | None]:
    """Which part of each caption the truth calls noisy, by uid."""
    samples = (sample.metadata for sample in samples_of(shards))
    return {facts["uid"]: facts.get("noisy_part") for facts in samples}


def scored(shards: Path, model: str) -> str:
    """The score table of a folder of shards, with its sentences, beside it."""
    table = f"{shards}-{model.rpartition('/')[2]}.parquet"
    options = ScoreOptions(caption_parts="sentences")
    Score(shards=[str(shards)], out=table, model=model, precision="fp32", options=options).run()
    return table


def detected(shards: Path, model: str) -> dict[str, Any]:
    """How well each score tells captions with a wrong part, beside what costs as much.

    `worst cosine` is the least cosine of a part, which takes the same encoding. `named_of_all` is
    the share of captions with a wrong part whose wrong part is the one that is named.
    """
    columns = duckdb.sql(
        "SELECT uid, is_noisy, similarity, part_noise_probability, worst_part_number, "
        f"list_min(part_similarities) AS worst FROM '{scored(shards, model)}' WHERE status = 'ok'"
    ).fetchnumpy()
    rows = {name: np.ma.filled(values, np.nan) for name, values in columns.items()}
    noisy = rows["is_noisy"].astype(bool)
    probability = np.nan_to_num(rows["part_noise_probability"].astype(float))  # 0 where unknown
    truth = noisy_parts(shards)
    parts = np.array([-1 if truth[uid] is None else truth[uid] for uid in rows["uid"]])
    named = (rows["worst_part_number"] == parts)[noisy & (parts >= 0)]
    flagged = probability >= 0.5
    scores = {
        "part_noise_probability": probability,
        "worst cosine": -rows["worst"].astype(float),
        "whole cosine": -rows["similarity"].astype(float),
    }
    return {
        "pairs": len(noisy),
        "noisy": int(noisy.sum()),
        "flagged": int(flagged.sum()),
        "false": int((flagged & ~noisy).sum()),
        "auroc": {name: float(roc_auc_score(noisy, score)) for name, score in scores.items()},
        "precision": {
            name: float(average_precision_score(noisy, score)) for name, score in scores.items()
        },
        "named_of_all": float(named.mean()) if len(named) else None,
    }
