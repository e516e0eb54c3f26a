"""Scores beside people's judgements on Flickr8k-Expert and Flickr8k-CF.

    python tests/benchmarks flickr8k.judgements --data FOLDER --out runs/judgements
        [--record docs/records/flickr8k-judgements.json]

FOLDER is that of `flickr8k.study`, with `expert.csv` (`image, caption, judge1, judge2, judge3`) and
`crowdflower.csv` (`image, caption, yes_share`). A small CLIP learns the training split as it is;
the judged captions are then scored by it, an image with all of its captions, and every column is
compared with the judges. Agreement is low for so small a model: compare the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
from ncclean_pipelines.evaluate_judgements import EvaluateJudgements
from ncclean_pipelines.score import Score
from records import Row, benchmark

from flickr8k.corpora import MODEL_CONFIG, estimator, source

TABLES = {"expert": (), "crowdflower": ("yes_share",)}
_MEASURES = ("tau_b", "tau_c", "pairwise_accuracy")


def agreement(
    data: Path, out: Path, seeds: tuple[int, ...] = (0, 1, 2), steps: int = 240
) -> Iterator[Row]:
    """Kendall's tau of every column with the judges, by seed and table."""
    options = source(data, out, ())
    for seed in seeds:
        model = estimator(data, out, steps, seed)
        for name, rating in TABLES.items():
            judged, captions = data / f"{name}.csv", out / f"{name}.jsonl"
            duckdb.sql(
                f"COPY (SELECT DISTINCT image AS file_name, caption AS text FROM '{judged}' "
                f"ORDER BY ALL) TO '{captions}'"
            )
            table = str(out / f"{name}-{seed}.parquet")
            Score(
                shards=[str(captions)], out=table, model=model, precision="fp32",
                source_options=options,
            ).run()  # fmt: skip
            command = EvaluateJudgements(table=str(judged), scores=[table], rating=rating)
            scores = command.run().summary.scores
            estimates = {
                one.score: {measure: list(getattr(one.agreement, measure)) for measure in _MEASURES}
                for one in scores
            }
            facts = scores[0].agreement
            counts = {kind: getattr(facts, kind) for kind in ("images", "captions", "judgements")}
            yield {"table": name, "seed": seed, **counts, "scores": estimates}


if __name__ == "__main__":
    benchmark(agreement, model=MODEL_CONFIG)
