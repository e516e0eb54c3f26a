"""Causes planted in Flickr8k: captions of one host shifted by a pair, and one word for another.

    python tests/benchmarks causes.photographs --data FOLDER --out runs/causes-photographs
        [--record docs/records/causes-photographs.json]

FOLDER is that of `flickr8k.study`. A small CLIP learns the training split as it is; pairs of the
validation and test photographs, one caption each, are then scored by it. 250 consecutive pairs of
one host have the caption of the pair before them, and one word stands for another in all captions
that have it. As a control, the same pairs as they are.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from flickr8k.study import JSON, estimator, small_images
from ncclean_pipelines.explain import Explain
from records import make_record, write_record

import ncclean

SHIFTED = 250
WORDS = ("dog", "boy")  # the first is replaced by the second


def pairs_of(data: Path) -> list[dict[str, str]]:
    """One caption of each photograph, with a url of one of eight hosts."""
    listed = json.loads((data / JSON).read_text())["images"]
    chosen = [image for image in listed if image["split"] != "train"]
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


def explained(name: str, pairs: list[dict[str, str]], model: str, out: Path) -> dict[str, Any]:
    """Score and explain pairs."""
    source, scores = out / f"{name}.jsonl", out / f"{name}.parquet"
    source.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    embeddings = str(out / f"{name}-embeddings")
    scored = ncclean.score(
        [str(source)], out=str(scores), model=model, precision="fp32", words=True,
        image_root=str(out / "images"), embeddings=embeddings,
    ).summary  # fmt: skip
    found = Explain(
        scores=[str(scores)], out=str(out / f"{name}-causes.parquet"), embeddings=[embeddings]
    ).run().summary  # fmt: skip
    reported = [
        {
            "kind": cause.kind, "label": cause.label, "outcome": cause.outcome,
            "pairs": cause.pairs, "rate": list(cause.rate), "proposal": cause.proposal,
        }
        for cause in found.causes
    ]  # fmt: skip
    return {
        "corpus": name,
        "pairs": found.pairs,
        "noise_rate": list(scored.noise_rate),
        "near_misses": list(scored.near_miss_rate),
        "reported": reported,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    images = small_images(arguments.data, arguments.out)
    model = estimator(arguments.data, images, arguments.out, arguments.steps, 0)
    pairs = pairs_of(arguments.data)
    rows = []
    for name, several in (("as it is", pairs), ("planted", planted(pairs))):
        rows.append(explained(name.replace(" ", "-"), several, model, arguments.out))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.record is not None:
        first = WORDS[0]
        has = re.compile(rf"\b{first}s?\b")
        renamed = sum(has.search(pair["text"]) is not None for pair in pairs)
        settings = {"steps": arguments.steps, "shifted": SHIFTED, "words": WORDS,
                    "renamed": renamed}  # fmt: skip
        write_record(arguments.record, make_record(rows, settings=settings))


if __name__ == "__main__":
    main()
