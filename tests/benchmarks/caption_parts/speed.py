"""What `--caption-parts` costs: pairs a second with captions of 1, 5 and 15 sentences.

    python tests/benchmarks caption_parts.speed --out runs/parts-speed
        [--record docs/records/caption-parts-speed.json]

Each corpus is scored with and without the option, in turn, and the texts of all distinct parts are
encoded by themselves: what is added beside that is the price of comparing, learning and writing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import duckdb
from ncclean_pipelines.score import Score
from records import make_record, write_record

from ncclean.base.config import ScoreOptions
from ncclean.data.caption_parts import parts_of, split_captions
from ncclean.data.options import CorpusOptions
from ncclean.data.synthetic.corpus import write_corpus
from ncclean.models.estimator import Estimator

SENTENCES = (1, 5, 15)


def of_corpus(sentences: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each way, the median of the repeats."""
    folder = arguments.out / str(sentences)
    if not folder.exists():
        options = CorpusOptions(pairs=arguments.pairs, sentences=sentences, duplicates=0.0)
        write_corpus(folder, options)
    table = f"{folder}.parquet"
    seconds: dict[str, list[float]] = {"whole": [], "parts": [], "encoding": []}
    estimator = Estimator.load(arguments.model, None)
    distinct: list[str] = []
    for _ in range(arguments.repeats):
        for name, parts in (("whole", None), ("parts", "sentences")):
            summary = Score(
                shards=[str(folder)], out=table, model=arguments.model, overwrite=True,
                options=ScoreOptions(caption_parts=parts),  # type: ignore[arg-type]
            ).run().summary  # fmt: skip
            seconds[name].append(arguments.pairs / summary.samples_per_second)  # type: ignore[union-attr]
        captions = [row[0] for row in duckdb.sql(f"SELECT text FROM '{table}'").fetchall()]
        starts = split_captions(captions, estimator.count_tokens, estimator.context_length)
        several = [(c, s) for c, s in zip(captions, starts, strict=True) if len(s) > 1]
        distinct = list({part for caption, one in several for part in parts_of(caption, one)})
        begin = time.perf_counter()
        estimator.encode_text(distinct)
        seconds["encoding"].append(time.perf_counter() - begin)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "sentences": sentences, "pairs": arguments.pairs, "distinct_parts": len(distinct),
        "seconds": medians, "all_seconds": seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for sentences in SENTENCES:
        rows.append(of_corpus(sentences, arguments))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.record is not None:
        settings = {"model": arguments.model, "repeats": arguments.repeats}
        write_record(arguments.record, make_record(rows, settings=settings))


if __name__ == "__main__":
    main()
