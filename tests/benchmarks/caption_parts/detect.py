"""Wrong sentences in rendered captions, of several kinds and lengths.

    python tests/benchmarks caption_parts.detect --out runs/parts [--record docs/records/parts.json]

Each corpus is rendered and scored by the bundled estimator. A fifth of the captions is wrong: one
sentence is another scene's, one is added, one word is exchanged, or all of the caption is another
scene's. Captions of one sentence, matched and not, say how often a right one is flagged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from corpora import rendered
from records import Row, benchmark

from caption_parts.measured import detected

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


def detect(out: Path, pairs: int = 3000, seeds: tuple[int, ...] = (0, 1, 2)) -> Iterator[Row]:
    """A row for each corpus and seed."""
    for kind, sentences in CORPORA:
        for seed in seeds:
            options = {"pairs": pairs, "sentences": sentences, "noise": {kind: RATE}, "seed": seed}
            shards = rendered(out / f"{kind}-{sentences}-{seed}", **options)
            facts = {"kind": kind, "sentences": sentences, "seed": seed}
            yield {**facts, **detected(shards, "demo")}


if __name__ == "__main__":
    benchmark(detect, rate=RATE)
