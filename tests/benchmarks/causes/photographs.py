"""Causes planted in Flickr8k: captions of one host shifted by a pair, and one word for another.

    python tests/benchmarks causes.photographs --data FOLDER --out runs/causes-photographs
        [--record docs/records/causes-photographs.json]

FOLDER is that of `flickr8k.study`. A small CLIP learns the training split as it is; pairs of the
validation and test photographs, one caption each, are then scored by it. 250 consecutive pairs of
one host have the caption of the pair before them, and one word stands for another in all captions
that have it. As a control, the same pairs as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from flickr8k.corpora import estimator, photographs_of, source, write_table
from records import Row, benchmark

from causes.judging import explained

SHIFTED = 250
WORDS = ("dog", "boy")  # the first is replaced by the second


def pairs_of(data: Path) -> list[dict[str, str]]:
    """One caption of each photograph, with a url of one of eight hosts."""
    chosen = photographs_of(data, "val", "test")
    return [
        {
            "file_name": image["filename"],
            "text": image["sentences"][0]["raw"],
            "url": f"https://host{place * 8 // len(chosen)}.example/{image['filename']}",
        }
        for place, image in enumerate(chosen)
    ]


def planted(pairs: list[dict[str, str]]) -> list[dict[str, str]]:
    """The pairs with both causes."""
    first, second = WORDS
    renamed = [
        {**pair, "text": re.sub(rf"\b{first}(s?)\b", rf"{second}\1", pair["text"])}
        for pair in pairs
    ]
    run = renamed[3 * len(pairs) // 8 :][:SHIFTED]
    texts = [pair["text"] for pair in run]
    for place, pair in enumerate(run):
        pair["text"] = texts[place - 1]
    for pair in run:
        pair["url"] = pair["url"].replace("host3", "shifted").replace("host4", "shifted")
    return renamed


def causes(data: Path, out: Path, steps: int = 240) -> Iterator[Row]:
    """A row for the pairs as they are, and one with the causes."""
    model = estimator(data, out, steps, 0)
    root = str(source(data, out).image_root)
    options = {"model": model, "precision": "fp32", "words": True, "image_root": root}
    pairs = pairs_of(data)
    for name, several in (("as-it-is", pairs), ("planted", planted(pairs))):
        folder = out / name
        folder.mkdir(exist_ok=True)
        found = explained(write_table(several, folder / "pairs.jsonl"), folder, score=options)
        yield {
            "corpus": name,
            "pairs": found.summary.pairs,
            "noise_rate": list(found.scored.noise_rate),
            "near_misses": list(found.scored.near_miss_rate),
            "reported": [
                {
                    "kind": cause.kind, "label": cause.label, "outcome": cause.outcome,
                    "pairs": cause.pairs, "rate": list(cause.rate), "proposal": cause.proposal,
                }
                for cause in found.summary.causes
            ],
        }  # fmt: skip


if __name__ == "__main__":
    benchmark(causes, shifted=SHIFTED, words=WORDS)
