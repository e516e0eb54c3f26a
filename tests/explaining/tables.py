"""Score tables of which the causes are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ("red", "blue", "small", "large", "dog", "cat", "car", "house", "tree", "boat")


def columns(rows: int, seed: int = 0, noise: float = 0.1, words: int = 6) -> dict[str, Any]:
    """Columns of `rows` pairs in shards of 500; a share of them is wrong, in `wrong`.

    Probabilities, cosines and ranks are what an estimator gives that tells most pairs apart.
    """
    rng = np.random.default_rng(seed)
    captions = [" ".join(rng.choice(WORDS, words, replace=False)) for _ in range(rows)]
    return {
        "uid": [f"{number:032x}" for number in range(rows)],
        "shard": [f"{number // 500:05d}" for number in range(rows)],
        "key": [f"{number:06d}" for number in range(rows)],
        "row": np.arange(rows, dtype=np.int32) % 500,
        "caption_number": np.zeros(rows, np.int16),
        "text": np.array(captions, object),
        "url": np.array([f"https://h{rng.integers(20)}.example/a/{n}.jpg" for n in range(rows)],
                        object),
        "width": rng.integers(100, 103, rows).astype(np.int32),
        "height": np.full(rows, 100, np.int32),
        "status": ["ok"] * rows,
        "block": np.zeros(rows, np.int32),
        "wrong": rng.random(rows) < noise,
    }  # fmt: skip


def judged(values: dict[str, Any], seed: int = 1) -> dict[str, Any]:
    """The same columns with what an estimator says of the pairs that are wrong."""
    rng = np.random.default_rng(seed)
    wrong = values["wrong"]
    rows, noise = len(wrong), max(wrong.mean(), 0.01)
    # Scores are normal with means 0 and 3: the probability is exact.
    score = rng.normal(np.where(wrong, 0.0, 3.0))
    odds = noise / (1 - noise) * np.exp(-3 * score + 4.5)
    probability = odds / (1 + odds)
    rank = np.where(wrong, rng.random(rows), rng.random(rows) ** 4 * 0.2)
    other = np.where(wrong, rng.random(rows), rng.random(rows) ** 4 * 0.2)
    return values | {
        "similarity": (score / 20).astype(np.float32),
        "noise_probability": probability.astype(np.float32),
        "t2i_rank": (rank * 499).astype(np.int32),
        "i2t_rank": (other * 499).astype(np.int32),
    }


def write(path: Path, values: dict[str, Any]) -> str:
    """Write the columns as a score table, without the truth."""
    pq.write_table(pa.table({name: v for name, v in values.items() if name != "wrong"}), path)
    return str(path)
