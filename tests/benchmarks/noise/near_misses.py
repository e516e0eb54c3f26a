"""How well captions with one wrong word are found, and their share is estimated.

    python tests/benchmarks noise.near_misses [--pairs 4000] [--record near-misses.json]

Rendered scenes: in a fifth, one fact of the scene is another one in the caption, a shape or a
colour for the most part, whether the list of words knows it or not. They are scored with `--words`
and judged with `ncclean evaluate noise`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from corpora import rendered
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.score import Score
from records import Row, benchmark

from ncclean.base.config import ScoreOptions

MODELS, SHARE = ("demo", "demo-noisy"), 0.2
SCORES = ("similarity", "neg_clip_loss", "near_miss_score")


def near_misses(pairs: int = 4000, seed: int = 11) -> Iterator[Row]:
    """The share as it is estimated, and how the scores rank, by model."""
    with tempfile.TemporaryDirectory(prefix="ncclean-near-misses-") as scratch:
        shards = rendered(Path(scratch, "shards"), pairs=pairs, noise={"hard": SHARE}, seed=seed)
        for model in MODELS:
            table = str(Path(scratch, f"{model}.parquet"))
            command = Score(
                shards=[str(shards)], out=table, model=model, options=ScoreOptions(words=True)
            )
            rates = command.run().summary
            scores = EvaluateNoise(scores=[table]).run().summary.scores
            yield {
                "model": model, "noise": "scene", "share": SHARE,
                "noise_rate": rates.noise_rate.value, "near_misses": list(rates.near_miss_rate),
                "scores": {
                    score.column: {"auroc": round(score.kinds[0].report.auroc, 4)}
                    for score in scores
                    if score.column in SCORES
                },
            }  # fmt: skip


if __name__ == "__main__":
    benchmark(near_misses)
