"""Scores that cost more: how well each ranks mismatched pairs below matched ones.

    python tests/benchmarks noise.score_candidates --data FOLDER [--pairs 16000] [--draws 5]
        [--record docs/records/score-candidates.json]

FOLDER holds `.npz` files of real embeddings as `noise.real_clip` takes them: in each draw the
captions of a fifth of the pairs are permuted. Rendered corpora have a fifth of permuted captions,
of captions with one wrong word, or of boilerplate, and are embedded by both bundled estimators.
Compared are `score`'s own columns, `neg_clip_loss` with `--pool`, and `--canonical`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from corpora import rendered
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.score import Score
from records import Row, benchmark

from ncclean.base.config import ScoreOptions
from noise.real_clip import SHARE, permuted

MODELS, KINDS, POOL = ("demo", "demo-noisy"), ("ncr", "hard", "junk"), 32_768
_WAYS = {
    "": (ScoreOptions(), ("similarity", "neg_clip_loss")),
    ", pool": (ScoreOptions(pool=POOL), ("neg_clip_loss",)),
    "canonical": (ScoreOptions(canonical=True), ("canonical_similarity",)),
}


def aurocs(embeddings: str, scale: float | str, table: Path) -> dict[str, float]:
    """AUROC of each candidate; none of those that need more pairs."""
    found = {}
    for way, (options, columns) in _WAYS.items():
        Score(
            shards=[embeddings], out=str(table), scale=scale, options=options, overwrite=True
        ).run()
        for score in EvaluateNoise(scores=[str(table)]).run().summary.scores:
            auroc = score.kinds[0].report.auroc
            if score.column in columns and not np.isnan(auroc):
                found[way if way == "canonical" else f"{score.column}{way}"] = auroc
    return found


def candidates(data: Path, pairs: int = 16_000, draws: int = 5) -> Iterator[Row]:
    """A row for each set of embeddings."""
    for file in sorted(data.glob("*.npz")):
        trials = []
        for seed in range(draws):
            with tempfile.TemporaryDirectory(prefix="ncclean-candidates-") as name:
                noisy = permuted(file, Path(name), seed)
                trials.append(aurocs(noisy, 100.0, Path(name, "scores.parquet")))
        yield {"corpus": file.stem, "noise": "ncr", "scores": _means(trials)}
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="ncclean-candidates-") as name:
            folder = Path(name)
            shards = rendered(folder / "shards", pairs=pairs, noise={kind: SHARE})
            for model in MODELS:
                embeddings = str(folder / model)
                Score(
                    shards=[str(shards)], out=f"{embeddings}.parquet", model=model, shift=0.2,
                    precision="fp32", options=ScoreOptions(embeddings=embeddings),
                ).run()  # fmt: skip
                scores = _means([aurocs(embeddings, model, folder / "scores.parquet")])
                yield {"corpus": f"rendered, {model}", "noise": kind, "scores": scores}
    return {"seeds": list(range(draws))}


def _means(trials: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"auroc": round(float(np.mean([trial[name] for trial in trials])), 5)}
        for name in trials[0]
    }


if __name__ == "__main__":
    benchmark(candidates, share=SHARE, pool=POOL)
