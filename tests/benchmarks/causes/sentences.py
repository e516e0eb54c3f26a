"""One sentence of long captions is wrong on one host: whether `ncclean explain` finds the host.

    python tests/benchmarks causes.sentences --out runs/causes-sentences
        [--record docs/records/causes-sentences.json]

Rendered corpora of 3,200 pairs with captions of three or five sentences, of which 5 % have a wrong
sentence at random. 220 pairs of one host have a sentence of another caption each; another host has
captions of two sentences, all right. Scored with `--caption-parts sentences`. What counts as found
and as false is as in `causes.rendered`; as a control, the same corpora without the cause.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from ncclean_pipelines.explain import Explain
from ncclean_pipelines.score import Score
from records import make_record, write_record

from causes.planting import SIZE, Corpus, read_corpus, write_corpus
from causes.rendered import MIN_EXCESS, judge
from ncclean.base.config import ScoreOptions
from ncclean.data.caption_noise import with_foreign_sentence
from ncclean.data.caption_parts import parts_of, sentence_starts
from ncclean.data.options import CorpusOptions
from ncclean.data.synthetic.corpus import write_corpus as render
from ncclean.explaining.options import ExplainOptions

PAIRS, PER_SHARD, NOISE = 3200, 400, 0.05
CAUSE, HOST = "wrong sentence of a host", "captioned.example"
TRIALS = ((0, 3, True), (1, 5, True), (2, 3, True), (3, 5, True), (100, 3, False), (101, 5, False))


def plant(folder: Path, seed: int, causes: bool) -> Corpus:
    """Give one host wrong sentences, and another captions of two sentences."""
    corpus = Corpus(read_corpus(folder))
    rng = np.random.default_rng(seed)
    for sample in corpus.samples:
        sample.facts["url"] = f"https://host{rng.integers(12)}.example/images/{sample.key}.jpg"
    free = [sample for sample in corpus.samples if not sample.facts["is_noisy"]]
    chosen = [free[place] for place in rng.permutation(len(free))[: 2 * SIZE + 1]]
    for sample in chosen[SIZE : 2 * SIZE]:
        sample.trap = "short captions"
        sample.facts["url"] = f"https://short.example/images/{sample.key}.jpg"
        caption = sample.caption
        sample.facts["caption"] = " ".join(parts_of(caption, sentence_starts(caption))[:2])
    captions = [sample.caption for sample in chosen]
    for place, sample in enumerate(chosen[:SIZE] if causes else ()):
        sample.facts["url"] = f"https://{HOST}/images/{sample.key}.jpg"
        other = captions[(place + 1) % SIZE]
        wrong, part = with_foreign_sentence(sample.caption, other, random.Random(place))
        if part is not None:
            sample.describe(wrong, CAUSE)
    corpus.groups = [CAUSE] if causes else []
    return corpus


def measure(out: Path, model: str, corpus: Corpus) -> dict[str, Any]:
    """Score and explain one corpus."""
    place = out / model
    place.mkdir()
    scores = str(place / "scores.parquet")
    scored = Score(
        shards=[str(out / "shards")], out=scores, model=model,
        options=ScoreOptions(caption_parts="sentences"),
    ).run().summary  # fmt: skip
    explained = Explain(
        scores=[scores], out=str(place / "causes.parquet"),
        options=ExplainOptions(min_excess=MIN_EXCESS),
    ).run().summary  # fmt: skip
    found, covered, reported = judge(list(explained.causes), corpus, scores, {})
    return {
        "model": model,
        "planted": {cause: len(corpus.of(cause)) for cause in corpus.groups},
        "found": found,
        "covered": covered,
        "reported": reported,
        "unknown": list(explained.unknown),
        "part_noise_rate": list(scored.part_noise_rate),
        "tested": explained.tested,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--models", nargs="+", default=["demo", "demo-noisy"])
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    rows = []
    for seed, sentences, causes in TRIALS:
        place = arguments.out / str(seed)
        shutil.rmtree(place, ignore_errors=True)
        options = CorpusOptions(
            pairs=PAIRS, shard_size=PER_SHARD, sentences=sentences, duplicates=0, seed=seed,
            noise={"foreign_sentence": NOISE},
        )  # fmt: skip
        render(place / "plain", options, 1)
        corpus = plant(place / "plain", seed, causes)
        write_corpus(corpus, place / "shards")
        for model in arguments.models:
            facts = {"seed": seed, "sentences": sentences, "causes": causes}
            rows.append(facts | measure(place, model, corpus))
            print(json.dumps(rows[-1]), flush=True)
    if arguments.record is not None:
        settings = {"pairs": PAIRS, "noise": NOISE, "min_excess": MIN_EXCESS}
        seeds = [seed for seed, *_ in TRIALS]
        write_record(arguments.record, make_record(rows, settings=settings, seeds=seeds))


if __name__ == "__main__":
    main()
