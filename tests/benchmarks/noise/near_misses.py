"""How well captions with one wrong word are found, and their share is estimated.

    python tests/benchmarks noise.near_misses [--pairs 4000] [--record near-misses.json]

Rendered scenes. `scene`: one fact of the scene is another one in the caption, a shape or a colour
for the most part, whether the list of words knows it or not. `list`: a word of the list is
exchanged for another of its class, whether an image shows it or not. `permuted`: whole captions.
Each corpus is scored with `--words` and judged with `ncclean evaluate noise`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.inject_noise import InjectNoise
from ncclean_pipelines.score import Score
from records import make_record, write_record

from ncclean.base.config import ScoreOptions
from ncclean.data.synthetic import CorpusOptions, write_corpus

MODELS = ("demo", "demo-noisy")
CORPORA = (
    ("scene", 0.0),
    ("scene", 0.05),
    ("scene", 0.2),
    ("list", 0.05),
    ("list", 0.2),
    ("permuted", 0.2),
)
SCORES = ("similarity", "neg_clip_loss", "word_margin", "near_miss_score")


def corpus(folder: Path, kind: str, share: float, pairs: int) -> str:
    """A folder of shards with this share of wrong captions."""
    noise = {} if kind == "list" else {{"scene": "hard", "permuted": "ncr"}[kind]: share}
    options = CorpusOptions(pairs=pairs, shard_size=1000, noise=noise, duplicates=0.0, seed=11)
    write_corpus(folder / "shards", options)
    if kind != "list":
        return str(folder / "shards")
    out = str(folder / "noisy")
    InjectNoise(shards=[str(folder / "shards")], out=out, noise=[f"hard={share}"]).run()
    return out


def measure(source: str, model: str, kind: str, share: float, folder: Path) -> dict[str, Any]:
    """The share as it is estimated, and how the scores rank."""
    table = str(folder / f"{model}.parquet")
    request = Score(
        shards=[source], out=table, model=model, pretrained=None, options=ScoreOptions(words=True)
    )
    found = request.run().summary
    ranking: dict[str, dict[str, float]] = {}
    if share:
        for score in EvaluateNoise(scores=[table]).run().summary.scores:
            report = score.kinds[0].report
            if score.column in SCORES:
                ranking[score.column] = {
                    "auroc": round(report.auroc, 4),
                    "average_precision": round(report.average_precision, 4),
                }
    return {
        "model": model,
        "noise": kind,
        "share": share,
        "noise_rate": found.noise_rate.value,
        "near_misses": list(found.near_miss_rate),
        "scores": ranking,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    rows = []
    for kind, share in CORPORA:
        with tempfile.TemporaryDirectory(prefix="ncclean-near-misses-") as scratch:
            source = corpus(Path(scratch), kind, share, arguments.pairs)
            for model in MODELS:
                rows.append(measure(source, model, kind, share, Path(scratch)))
                print(rows[-1], flush=True)
    if arguments.record is not None:
        settings = {"pairs": arguments.pairs, "corpora": CORPORA}
        write_record(arguments.record, make_record(rows, settings=settings, seeds=[11]))


if __name__ == "__main__":
    main()
