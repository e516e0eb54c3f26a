"""Scores beside people's judgements on Flickr8k-Expert and Flickr8k-CF.

    python tests/benchmarks flickr8k.judgements --data FOLDER --out runs/judgements
        [--record docs/records/flickr8k-judgements.json]

FOLDER is that of `flickr8k.study`, with `expert.csv` (`image, caption, judge1, judge2, judge3`) and
`crowdflower.csv` (`image, caption, yes_share`). A small CLIP learns the training split as it is;
the judged captions are then scored by it, an image with all of its captions, and every column is
compared with the judges. Agreement is low for so small a model: compare the columns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import duckdb
from ncclean_pipelines.evaluate_judgements import EvaluateJudgements
from ncclean_pipelines.score import Score
from records import make_record, write_record

from flickr8k.study import MODEL_CONFIG, estimator, small_images
from ncclean.data.options import SourceOptions

TABLES = {"expert": (), "crowdflower": ("yes_share",)}


def agreement(name: str, model: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Kendall's tau of every column with the judges of one table."""
    out, judged = arguments.out, arguments.data / f"{name}.csv"
    source = out / f"{name}.jsonl"
    if not source.exists():
        duckdb.sql(
            f"COPY (SELECT DISTINCT image AS file_name, caption AS text FROM '{judged}' "
            f"ORDER BY ALL) TO '{source}'"
        )
    table = str(out / f"{name}-{seed}.parquet")
    Score(
        shards=[str(source)], out=table, model=model, precision="fp32",
        source_options=SourceOptions(image_root=str(out / "images")),
    ).run()  # fmt: skip
    found = EvaluateJudgements(table=str(judged), scores=[table], rating=TABLES[name]).run().summary
    scores = {
        one.score: {
            measure: [estimate.value, estimate.low, estimate.high]
            for measure in ("tau_b", "tau_c", "pairwise_accuracy")
            for estimate in [getattr(one.agreement, measure)]
        }
        for one in found.scores
    }
    facts = found.scores[0].agreement
    counts = {"images": facts.images, "captions": facts.captions, "judgements": facts.judgements}
    return {"table": name, "seed": seed, **counts, "scores": scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    images = small_images(arguments.data, arguments.out)
    rows = []
    for seed in arguments.seeds:
        model = estimator(arguments.data, images, arguments.out, arguments.steps, seed)
        for name in TABLES:
            rows.append(agreement(name, model, seed, arguments))
            print(json.dumps(rows[-1]), flush=True)
    if arguments.record is not None:
        settings = {"steps": arguments.steps, "model": MODEL_CONFIG}
        write_record(arguments.record, make_record(rows, settings=settings, seeds=arguments.seeds))


if __name__ == "__main__":
    main()
