"""One sentence of long captions is wrong on one host: whether `ncclean explain` finds the host.

    python tests/benchmarks causes.sentences --out runs/causes-sentences
        [--record docs/records/causes-sentences.json]

Rendered corpora of 3,200 pairs with captions of three or five sentences, of which 5 % have a wrong
sentence at random. 220 pairs of one host have a sentence of another caption each; another host has
captions of two sentences, all right. Scored with `--caption-parts sentences`. What counts as found
and as false is as in `causes.rendered`, with embeddings and from the table alone; as a control, the
same corpora without the cause.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from corpora import rendered
from records import Row, benchmark

from causes.judging import MIN_EXCESS, explained
from causes.planting import SIZE, Corpus, read_corpus, write_corpus
from ncclean.data.caption_noise import with_foreign_sentence
from ncclean.data.caption_parts import parts_of, sentence_starts

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
    return corpus


def causes(out: Path, models: tuple[str, ...] = ("demo", "demo-noisy")) -> Iterator[Row]:
    """A row for each corpus and model, with embeddings and without."""
    out.mkdir(parents=True, exist_ok=True)
    for seed, sentences, has_causes in TRIALS:
        with tempfile.TemporaryDirectory(dir=out) as name:
            folder = Path(name)
            options = {"pairs": PAIRS, "shard_size": PER_SHARD, "sentences": sentences}
            noise = {"foreign_sentence": NOISE}
            corpus = plant(
                rendered(folder / "plain", noise=noise, seed=seed, **options), seed, has_causes
            )
            write_corpus(corpus, folder / "shards")
            for model, embeddings in itertools.product(models, (False, True)):
                kind = {"model": model, "embeddings": embeddings}
                (to := folder / f"{model}-{embeddings}").mkdir()
                found = explained(
                    folder / "shards", to, embeddings=embeddings,
                    score={"model": model, "caption_parts": "sentences"},
                )  # fmt: skip
                facts = {"seed": seed, "sentences": sentences, "causes": has_causes, **kind}
                yield {**facts, **corpus.truth.judge(found)}
    return {"seeds": [seed for seed, *_ in TRIALS]}


if __name__ == "__main__":
    benchmark(causes, pairs=PAIRS, noise=NOISE, min_excess=MIN_EXCESS)
