"""What `--signals text` says of signs planted in Flickr8k's captions.

    python tests/benchmarks noise.text_signals --data FOLDER
        [--record docs/records/text-signals.json]

FOLDER holds `dataset_flickr8k.json` in Karpathy's layout. `count` captions get each sign; what
remains is as people wrote it, so that a sign found there is taken to be wrong. No model is needed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from records import Row, benchmark

from ncclean.data.caption_noise import junk_caption
from ncclean.data.text_signals import TextSignals, learn_boilerplate
from ncclean.explaining.kinds import TEXT_SIGNS

_ENDS = (" - stock photo", " | Click to enlarge", " at our online shop", ". All rights reserved",
         " | Shutterstock")  # fmt: skip
_STARTS = ("Image of ", "Free download: ", "Photo gallery: ", "Click to enlarge ")
_REPEATED = ("no photo available", "our holiday in Spain", "thumbnail")
_FILES = ("{text} IMG_{n:04d}.jpg", "DSC_{n:04d}", "{text} (P10{n:05d}.JPG)", "photo-{n}.webp",
          "PXL_20230{n:04d}_1200")  # fmt: skip
_URLS = ("{text} https://example.com/{n}", "www.example{n}.org", "{text} - shop{n}.de/item")
_NUMBERS = ("{n} x {m}", "ref {n}-{m}-{n}", "{n:06d} {m}")
BOILERPLATE = "boilerplate"


def _filled(templates: tuple[str, ...]) -> Callable[[str, random.Random], str]:
    def change(text: str, rng: random.Random) -> str:
        n, m = rng.randrange(10_000), rng.randrange(10_000)
        return rng.choice(templates).format(text=text.rstrip(" ."), n=n, m=m)

    return change


def _again(text: str, rng: random.Random) -> str:
    words = text.rstrip(" .").split()[:4]
    return ", ".join([" ".join(words)] * rng.randint(3, 5))


# By kind: the sign that should be found, none for any, and how a caption gets it.
PLANTED: dict[str, tuple[str | None, Callable[[str, random.Random], str]]] = {
    "URL": ("a URL", _filled(_URLS)),
    "file or camera name": ("a file name", _filled(_FILES)),
    "phrase at an end": (BOILERPLATE, _filled(tuple(f"{{text}}{end}" for end in _ENDS))),
    "phrase at the beginning": (BOILERPLATE, _filled(tuple(f"{one}{{text}}" for one in _STARTS))),
    "same caption": (BOILERPLATE, lambda text, rng: rng.choice(_REPEATED)),
    "words that repeat": ("words that repeat", _again),
    "numbers": ("mostly digits", _filled(_NUMBERS)),
    "`junk` of inject-noise": (None, lambda text, rng: junk_caption(rng)),
}


def signs(data: Path, counts: tuple[int, ...] = (200, 20), seed: int = 0) -> Iterator[Row]:
    """A row for each count and kind, and one for the captions without any."""
    listed = json.loads((data / "dataset_flickr8k.json").read_text())["images"]
    captions = [sentence["raw"] for image in listed for sentence in image["sentences"]]
    for count in counts:
        rng = random.Random(seed)
        texts, kinds = list(captions), [""] * len(captions)
        chosen = iter(rng.sample(range(len(texts)), count * len(PLANTED)))
        for kind, (_, change) in PLANTED.items():
            for _ in range(count):
                number = next(chosen)
                texts[number], kinds[number] = change(texts[number], rng), kind
        boilerplate = learn_boilerplate(texts)
        yield from _measured(texts, kinds, boilerplate, count)


def _measured(
    texts: list[str], kinds: list[str], boilerplate: list[str], count: int
) -> Iterator[dict[str, Any]]:
    table = pa.table(TextSignals(boilerplate)(texts) | {"kind": kinds})
    conditions = {name: sql for name, (_, sql) in TEXT_SIGNS.items()}
    conditions[BOILERPLATE] = "text_boilerplate IS NOT NULL"
    with duckdb.connect() as connection:
        connection.register("captions", table)
        columns = ", ".join(f"({sql})::INT AS '{name}'" for name, sql in conditions.items())
        rows = connection.sql(f"SELECT kind, {columns} FROM captions").fetchall()
    for kind, (expected, _) in PLANTED.items():
        own = [dict(zip(conditions, row[1:], strict=True)) for row in rows if row[0] == kind]
        found = sum(any(row.values()) if expected is None else row[expected] for row in own)
        yield {"count": count, "kind": kind, "captions": len(own), "found": found}
    untouched = [row[1:] for row in rows if not row[0]]
    yield {
        "count": count,
        "kind": "untouched",
        "captions": len(untouched),
        "found": sum(map(any, untouched)),
        "signs": {name: sum(c) for name, *c in zip(conditions, *untouched, strict=True)},
        "boilerplate": len(boilerplate),
    }


if __name__ == "__main__":
    benchmark(signs)
