"""A rendered corpus with five of ten causes of wrong pairs, and groups that only look like causes.

Every cause holds about 220 pairs, but for a shard of 400 and the two that a word decides. The traps
are right: one host cuts its captions to two words, one darkens its images.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from corpora import jpeg, samples_of, write_shard
from PIL import Image, ImageEnhance

from causes.judging import Truth

SIZE = 220
SHARDS, PER_SHARD = 16, 400
BOILERPLATE = "Click here to enlarge this picture, free shipping"
NEAR_MISSES = ("class renamed", "colour wrong in a cluster")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black")


@dataclass
class Sample:
    """One pair: `facts` are its json, `causes` those that it belongs to."""

    shard: int
    key: str
    image: bytes
    facts: dict[str, Any]
    source: str = "crawl-1"
    cause: str | None = None
    trap: str | None = None

    @property
    def caption(self) -> str:
        return str(self.facts["caption"])

    @property
    def members(self) -> tuple[str, dict[str, bytes]]:
        """Its key, and its files by extension."""
        facts = json.dumps(self.facts).encode()
        return self.key, {"jpg": self.image, "txt": self.caption.encode(), "json": facts}

    def describe(self, caption: str, cause: str) -> None:
        """Give the pair a wrong caption."""
        self.facts |= {"caption": caption, "is_noisy": True, "noise_kind": cause}
        self.cause = cause


@dataclass
class Corpus:
    samples: list[Sample]

    @property
    def truth(self) -> Truth:
        """Which pairs are wrong, in which way, and by which cause."""
        wrong: set[str] = set()
        planted: dict[str, set[str]] = {}
        for sample in self.samples:
            if sample.facts["is_noisy"]:
                wrong.add(sample.facts["uid"])
            if sample.cause is not None:
                planted.setdefault(sample.cause, set()).add(sample.facts["uid"])
        near = set().union(*(planted.get(name, set()) for name in NEAR_MISSES))
        everyone = {sample.facts["uid"] for sample in self.samples}
        return Truth(everyone, {"near miss": near, "mismatch": wrong - near}, planted)


def read_corpus(folder: Path) -> list[Sample]:
    """Read rendered shards."""
    return [
        Sample(int(sample.key[:5]), sample.key, sample.image, dict(sample.metadata))
        for sample in samples_of(folder)
    ]


def write_corpus(corpus: Corpus, folder: Path) -> None:
    """Write the shards, and `sources.parquet`, a table to join."""
    by_shard: dict[int, list[Sample]] = {}
    for sample in corpus.samples:
        by_shard.setdefault(sample.shard, []).append(sample)
    for number, samples in by_shard.items():
        write_shard(folder / f"{number:05d}.tar", (sample.members for sample in samples))
    uids = [sample.facts["uid"] for sample in corpus.samples]
    sources = [sample.source for sample in corpus.samples]
    pq.write_table(pa.table({"uid": uids, "source": sources}), folder / "sources.parquet")


def plant(
    samples: list[Sample], cluster_of: Callable[[Sample], int], seed: int, causes: bool = True
) -> Corpus:
    """Plant the traps, and five causes unless told otherwise: those of an even or an odd seed."""
    rng = np.random.default_rng(seed)
    corpus = Corpus(samples)
    for sample in samples:
        sample.source = f"crawl-{rng.integers(1, 7)}"
        _url(sample, f"host{rng.integers(12)}.example", "images")
    free = [s for s in samples if s.shard not in (3, 7) and not s.facts["is_noisy"]]
    free = [free[place] for place in rng.permutation(len(free))]

    def take(count: int = SIZE) -> list[Sample]:
        taken = free[:count]
        del free[:count]
        return sorted(taken, key=lambda s: (s.shard, s.key))

    for sample in take(300):
        sample.trap = "short captions"
        _url(sample, "short.example", "images")
        sample.facts["caption"] = _shortened(sample)
    for sample in take(300):
        sample.trap = "dark images"
        _url(sample, "dark.example", "images")
        sample.image = _darkened(sample.image)
    if causes:
        (_plant_odd if seed % 2 else _plant_even)(corpus, take, cluster_of, rng)
    return corpus


def _plant_even(corpus: Corpus, take: Any, cluster_of: Any, rng: Any) -> None:
    shifted = take()
    for sample in shifted:
        _url(sample, "shifted.example", "images")
    _move(shifted, 1, "host shifted by one")
    for sample in [s for s in corpus.samples if s.shard == 3][:SIZE]:
        sample.describe(BOILERPLATE, "boilerplate of a shard")
    thumbs, others = take(), take()
    for samples, folder in ((thumbs, "thumbs"), (others, "full")):
        for sample in samples:
            _url(sample, "shop.example", folder)
    _permute(thumbs, rng, "folder of a host")
    for sample in take():
        sample.describe(f"IMG_{rng.integers(1000, 9999)}.JPG", "file names")
    for sample in corpus.samples:
        if sample.cause is None and not sample.facts["is_noisy"] and _has(sample, "hexagon"):
            sample.describe(sample.caption.replace("hexagon", "arrow"), "class renamed")


def _plant_odd(corpus: Corpus, take: Any, cluster_of: Callable[[Sample], int], rng: Any) -> None:
    _move([s for s in corpus.samples if s.shard == 7], 3, "shard shifted by three")
    crawled = take()
    for sample in crawled:
        sample.source = "crawl-7"
    _permute(crawled, rng, "source of a joined table")
    placeholder = jpeg(Image.new("RGB", (75, 50), (205, 205, 205)), 75)
    for sample in take():
        sample.image = placeholder
        sample.describe(sample.caption, "placeholder of one size")
    seen = take()
    _permute(seen, rng, "phrase")
    for sample in seen:
        sample.facts["caption"] = f"As seen on {sample.caption}"
    counts: dict[tuple[int, str], list[Sample]] = {}
    for sample in corpus.samples:
        if sample.cause is None and sample.trap is None and not sample.facts["is_noisy"]:
            for colour in filter(lambda name: _has(sample, name), COLOURS):
                counts.setdefault((cluster_of(sample), colour), []).append(sample)
    (_, colour), chosen = max(counts.items(), key=lambda item: len(item[1]))
    other = COLOURS[(COLOURS.index(colour) + 4) % len(COLOURS)]
    for sample in chosen:
        wrong = re.sub(rf"\b{colour}\b", other, sample.caption)
        sample.describe(wrong, "colour wrong in a cluster")


def _has(sample: Sample, word: str) -> bool:
    return re.search(rf"\b{word}s?\b", sample.caption.lower()) is not None


def _move(samples: Sequence[Sample], by: int, cause: str) -> None:
    captions = [sample.caption for sample in samples]
    for place, sample in enumerate(samples):
        sample.describe(captions[(place - by) % len(captions)], cause)


def _permute(samples: Sequence[Sample], rng: Any, cause: str) -> None:
    order = rng.permutation(len(samples))
    captions = [sample.caption for sample in samples]
    for place, sample in zip(order, np.roll(order, 1), strict=True):
        samples[place].describe(captions[sample], cause)


def _url(sample: Sample, host: str, folder: str) -> None:
    sample.facts["url"] = f"https://{host}/{folder}/{sample.key}.jpg"


def _shortened(sample: Sample) -> str:
    group = sample.facts["scene"]["groups"][0]
    return f"{group['colour']} {group['shape']}{'s' * (group['count'] > 1)}"


def _darkened(data: bytes) -> bytes:
    return jpeg(ImageEnhance.Brightness(Image.open(io.BytesIO(data))).enhance(0.8), 90)
