"""Wrong sentences in rendered captions, of several kinds and lengths.

    python tests/benchmarks caption_parts.detect --out runs/parts [--record docs/records/parts.json]

Each corpus is rendered and scored by the bundled estimator. A fifth of the captions is wrong: one
sentence is another scene's, one is added, one word is exchanged, or all of the caption is another
scene's. Captions of one sentence, matched and not, say how often a right one is flagged.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ncclean_pipelines.score import Score
from records import make_record, write_record

from caption_parts.measured import detected, noisy_parts
from ncclean.base.config import ScoreOptions
from ncclean.data.options import CorpusOptions
from ncclean.data.synthetic.corpus import write_corpus

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


def of_corpus(
    kind: str, sentences: int, seed: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """The row of one corpus."""
    folder = arguments.out / f"{kind}-{sentences}-{seed}"
    options = CorpusOptions(
        pairs=arguments.pairs, sentences=sentences, noise={kind: RATE}, seed=seed, duplicates=0.0
    )
    if not folder.exists():
        write_corpus(folder, options)
    table = f"{folder}.parquet"
    Score(
        shards=[str(folder)], out=table, model="demo", precision="fp32",
        options=ScoreOptions(caption_parts="sentences"),
    ).run()  # fmt: skip
    found = detected(table, noisy_parts(folder))
    return {"kind": kind, "sentences": sentences, "seed": seed, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for kind, sentences in CORPORA:
        for seed in arguments.seeds:
            rows.append(of_corpus(kind, sentences, seed, arguments))
            print(json.dumps(rows[-1]), flush=True)
    if arguments.record is not None:
        settings = {"pairs": arguments.pairs, "rate": RATE}
        write_record(arguments.record, make_record(rows, settings=settings, seeds=arguments.seeds))


if __name__ == "__main__":
    main()
