"""Wrong sentences in captions, of several kinds and lengths.

    python tests/benchmarks caption_parts.detect --out runs/parts [--data FOLDER]
        [--record docs/records/caption-parts.json]

Each corpus is rendered and scored by the bundled estimator. A fifth of the captions is wrong: one
sentence is another scene's, one is added, one word is exchanged, or all of the caption is another
scene's. Captions of one sentence, matched and not, say how often a right one is flagged.

With FOLDER, that of `flickr8k.study`, five captions of people in a row, one of them about another
photograph in a fifth of them: small CLIPs learn the training photographs with single captions, and
score 2,000 others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from corpora import rendered, samples_of
from flickr8k.corpora import captions_in_a_row, estimator, source, spoilt
from ncclean_pipelines.score import Score
from records import Row, benchmark
from sklearn.metrics import average_precision_score, roc_auc_score

from ncclean.base.config import ScoreOptions

RATE = 0.2
CORPORA = (
    ("foreign_sentence", 2),
    ("foreign_sentence", 5),
    ("foreign_sentence", 15),
    ("added_detail", 4),
    ("hard", 5),
    ("ncr", 5),
    ("ncr", 1),
)


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


def detect(
    out: Path, data: Path | None = None, pairs: int = 3000, steps: int = 240,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Iterator[Row]:  # fmt: skip
    """A row for each corpus and seed; `steps` are those of the CLIPs for photographs."""
    for seed in seeds if data is not None else ():
        model = estimator(data, out, steps, seed)
        table, noise = captions_in_a_row(data, out, 5), {"foreign_sentence": RATE}
        noisy = spoilt(table, noise, out / f"noisy-{seed}", seed, source(data, out, ()))
        facts = {"corpus": "Flickr8k", "what": "detection", "sentences": 5, "seed": seed}
        yield {**facts, **detected(noisy, model)}
    for (kind, sentences), seed in itertools.product(CORPORA if data is None else (), seeds):
        options = {"pairs": pairs, "sentences": sentences, "noise": {kind: RATE}, "seed": seed}
        shards = rendered(out / f"{kind}-{sentences}-{seed}", **options)
        facts = {"kind": kind, "sentences": sentences, "seed": seed}
        yield {**facts, **detected(shards, "demo")}


if __name__ == "__main__":
    benchmark(detect, rate=RATE)
