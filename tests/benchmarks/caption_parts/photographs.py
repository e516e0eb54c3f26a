"""Five captions of people in a row, one of them about another photograph: Flickr8k.

    python tests/benchmarks caption_parts.photographs --data FOLDER --out runs/photographs
        [--record docs/records/caption-parts-photographs.json]

FOLDER is that of `flickr8k.study`. Small CLIPs learn the training photographs with single captions;
2,000 others, whose captions are put in a row, are then scored whole and sentence by sentence. A
fifth of them has a sentence of another photograph.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flickr8k.corpora import MODEL_CONFIG, captions_in_a_row, estimator, source, spoilt
from records import Row, benchmark

from caption_parts.measured import detected

RATE = 0.2


def detect(
    data: Path, out: Path, seeds: tuple[int, ...] = (0, 1, 2), steps: int = 240
) -> Iterator[Row]:
    """A row for each estimator."""
    for seed in seeds:
        model = estimator(data, out, steps, seed)
        table = captions_in_a_row(data, out, 5)
        noise, options = {"foreign_sentence": RATE}, source(data, out, ())
        noisy = spoilt(table, noise, out / f"noisy-{seed}", seed, options)
        facts = {"corpus": "Flickr8k", "what": "detection", "sentences": 5, "seed": seed}
        yield {**facts, **detected(noisy, model)}


if __name__ == "__main__":
    benchmark(detect, rate=RATE, model=MODEL_CONFIG)
