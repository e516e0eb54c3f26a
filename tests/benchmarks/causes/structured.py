"""Corpora of embeddings with structure: groups that the estimator reads worse, and planted causes.

    python tests/benchmarks causes.structured --out runs/causes-structured
        [--record docs/records/causes-structured.json]

A tenth of the captions is exchanged at random over the whole corpus. In twenty corpora that is all:
what differs between groups is how much noise the vectors of their captions or images have, so
that no group has more wrong pairs than another. Whatever `explain` calls a cause there is false.
Every second structure comes again with five causes that are to be found. Each corpus is explained
with its embeddings and without.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from records import make_record, write_record

import ncclean
from ncclean.explaining.explain_scores import explain_scores
from ncclean.explaining.options import ExplainOptions

PAIRS, DIM, TOPICS, NOISE, SHARD = 6000, 128, 20, 0.1, 500
_NEAR = 0.9  # noise of a vector in the average corpus, by the length of its concept
MIN_EXCESS = ExplainOptions.min_excess


@dataclass
class Corpus:
    """N pairs: vectors (N, d), what is said of them, and whether each pair is `wrong`.

    `planted` are the members (N,) of each planted cause.
    """

    concept: np.ndarray
    topic: np.ndarray
    image_noise: np.ndarray
    text_noise: np.ndarray
    caption: np.ndarray
    language: np.ndarray
    host: np.ndarray
    shard: np.ndarray
    wrong: np.ndarray
    planted: dict[str, np.ndarray] = field(default_factory=dict)
    image: np.ndarray = field(default_factory=lambda: np.empty(0))
    text: np.ndarray = field(default_factory=lambda: np.empty(0))

    def write_captions(self, of: np.ndarray, rng: np.random.Generator) -> None:
        """Give pairs the captions, vectors and all, of the next one of them: `of` is (n,)."""
        order = rng.permutation(of)
        for name in ("text", "caption", "language"):
            values = getattr(self, name)
            values[order] = values[np.roll(order, 1)]
        self.wrong[order] = True


def plain(seed: int) -> Corpus:
    """Pairs of twenty topics, all as hard as one another, with captions of 5 to 9 words."""
    rng = np.random.default_rng(seed)
    topics = _unit(rng.normal(size=(TOPICS, DIM)))
    topic = rng.integers(TOPICS, size=PAIRS)
    concept = _unit(topics[topic] + 1.08 * rng.normal(size=(PAIRS, DIM)) / np.sqrt(DIM))
    order = np.arange(PAIRS)
    return Corpus(
        concept=concept,
        topic=topic,
        image_noise=np.full(PAIRS, _NEAR),
        text_noise=np.full(PAIRS, _NEAR),
        caption=np.array([_caption(one, rng, "", 5, 9) for one in topic], object),
        language=np.full(PAIRS, "en", object),
        host=np.array([f"host{one}.example" for one in rng.integers(15, size=PAIRS)], object),
        shard=order // SHARD,
        wrong=np.zeros(PAIRS, bool),
    )


def _caption(topic: int, rng: np.random.Generator, mark: str, low: int, high: int) -> str:
    count = rng.integers(low, high + 1)
    words = [f"{mark}t{topic}w{number}" for number in rng.choice(12, min(count, 12) // 2, False)]
    words += [f"{mark}w{number}" for number in rng.choice(40, count - len(words), False)]
    return " ".join(rng.permutation(words))


def _unit(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit


def embed(corpus: Corpus, seed: int) -> None:
    """Set the vectors from concepts and noise; the two towers have means of their own."""
    rng = np.random.default_rng([seed, 1])
    means = 0.8 * _unit(rng.normal(size=(2, DIM)))

    def side(mean: np.ndarray, noise: np.ndarray) -> np.ndarray:
        random = rng.normal(size=corpus.concept.shape) / np.sqrt(DIM)
        return _unit(mean + corpus.concept + noise[:, None] * random)

    corpus.image = side(means[0], corpus.image_noise)
    corpus.text = side(means[1], corpus.text_noise)


def auroc(corpus: Corpus, of: np.ndarray) -> float:
    """How often the own caption of an image fits better than another one of the group."""
    cosines = corpus.image[of][:600] @ corpus.text[of][:600].T
    own, other = cosines.diagonal(), cosines[~np.eye(len(cosines), dtype=bool)]
    return float(np.searchsorted(np.sort(other), own).mean() / len(other))


def harder(
    corpus: Corpus, of: np.ndarray, sides: tuple[str, ...], target: float, seed: int
) -> None:
    """Add noise to the vectors of a group until its AUROC is `target`."""
    low, high = 0.0, 12.0
    for _ in range(14):
        middle = (low + high) / 2
        for name in sides:
            getattr(corpus, f"{name}_noise")[of] = middle
        embed(corpus, seed)
        low, high = (middle, high) if auroc(corpus, of) > target else (low, middle)


Structure = Callable[[Corpus, int, np.random.Generator], None]


def language(share: float, target: float) -> Structure:
    """A language that the text tower reads worse, in its own words."""

    def make(corpus: Corpus, seed: int, rng: np.random.Generator) -> None:
        of = np.flatnonzero(rng.random(PAIRS) < share)
        corpus.language[of] = "ja"
        corpus.caption[of] = [_caption(one, rng, "j", 5, 9) for one in corpus.topic[of]]
        harder(corpus, of, ("text",), target, seed)

    return make


def topics(count: int, sides: tuple[str, ...], target: float) -> Structure:
    """Topics that are harder: one cluster of images, with the words of its captions."""

    def make(corpus: Corpus, seed: int, rng: np.random.Generator) -> None:
        harder(corpus, np.flatnonzero(corpus.topic < count), sides, target, seed)

    return make


def short(share: float, target: float) -> Structure:
    """Captions of two words that say less."""

    def make(corpus: Corpus, seed: int, rng: np.random.Generator) -> None:
        of = np.flatnonzero(rng.random(PAIRS) < share)
        corpus.caption[of] = [_caption(one, rng, "", 2, 2) for one in corpus.topic[of]]
        harder(corpus, of, ("text",), target, seed)

    return make


def shards(largest: float) -> Structure:
    """Shards of different difficulty."""

    def make(corpus: Corpus, seed: int, rng: np.random.Generator) -> None:
        noise = rng.uniform(_NEAR, largest, corpus.shard.max() + 1)
        corpus.text_noise[:] = corpus.image_noise[:] = noise[corpus.shard]
        embed(corpus, seed)

    return make


def host(share: float, sides: tuple[str, ...], target: float) -> Structure:
    """One host that has most pairs, or some, and is harder than the others."""

    def make(corpus: Corpus, seed: int, rng: np.random.Generator) -> None:
        of = np.flatnonzero(rng.random(PAIRS) < share)
        corpus.host[of] = "large.example"
        harder(corpus, of, sides, target, seed)

    return make


def topical_host(share: float, target: float) -> Structure:
    """A host that has all pairs of three topics beside others, and is harder."""

    def make(corpus: Corpus, seed: int, rng: np.random.Generator) -> None:
        of = np.flatnonzero((rng.random(PAIRS) < share) | (corpus.topic < 3))
        corpus.host[of] = "large.example"
        harder(corpus, of, ("image", "text"), target, seed)

    return make


BOTH = ("image", "text")
STRUCTURES: dict[str, Structure] = {
    "language .96": language(0.07, 0.96),
    "language .90": language(0.07, 0.90),
    "language .80": language(0.12, 0.80),
    "language .65": language(0.10, 0.65),
    "language .92, a third": language(0.33, 0.92),
    "topic .96": topics(1, BOTH, 0.96),
    "topic .85": topics(1, BOTH, 0.85),
    "topic .75": topics(2, BOTH, 0.75),
    "images of topics .90": topics(3, ("image",), 0.90),
    "captions of topics .90": topics(4, ("text",), 0.90),
    "short captions .95": short(0.1, 0.95),
    "short captions .85": short(0.2, 0.85),
    "short captions .70": short(0.05, 0.70),
    "shards to 1.6": shards(1.6),
    "shards to 2.2": shards(2.2),
    "shards to 3": shards(3.0),
    "host .93, 70 %": host(0.7, BOTH, 0.93),
    "host .88, 90 %": host(0.9, ("text",), 0.88),
    "host .85, 6 %": host(0.06, ("image",), 0.85),
    "topical host .95": topical_host(0.4, 0.95),
}


def plant_host(corpus: Corpus, rng: np.random.Generator) -> None:
    """A host whose captions were permuted."""
    of = rng.choice(PAIRS, 220, False)
    corpus.host[of] = "broken.example"
    corpus.write_captions(of, rng)
    corpus.planted["host permuted"] = of


def plant_shard(corpus: Corpus, rng: np.random.Generator) -> None:
    """Three in five pairs of a shard have the caption of another one of it."""
    of = np.flatnonzero(corpus.shard == 5)
    corpus.write_captions(rng.choice(of, len(of) * 3 // 5, False), rng)
    corpus.planted["shard, three in five"] = of


def plant_phrase(corpus: Corpus, rng: np.random.Generator) -> None:
    """Captions with a phrase, two in five of them wrong."""
    of = rng.choice(PAIRS, 300, False)
    corpus.write_captions(of[:120], rng)
    for place in of:
        corpus.caption[place] = f"as seen on {corpus.caption[place]}"
    corpus.planted["phrase, two in five"] = of


def plant_length(corpus: Corpus, rng: np.random.Generator) -> None:
    """Long captions, three in five of them wrong."""
    of = rng.choice(PAIRS, 400, False)
    corpus.caption[of] = [_caption(one, rng, "", 14, 18) for one in corpus.topic[of]]
    corpus.write_captions(of[:240], rng)
    corpus.planted["length, three in five"] = of


def plant_boilerplate(corpus: Corpus, rng: np.random.Generator) -> None:
    """One caption and its vector for all pairs of a folder's worth."""
    of = rng.choice(PAIRS, 200, False)
    corpus.caption[of] = "click here to enlarge this picture"
    corpus.text[of] = corpus.text[of[0]]
    corpus.wrong[of] = True
    corpus.planted["boilerplate"] = of


CAUSES = (plant_host, plant_shard, plant_phrase, plant_length, plant_boilerplate)


def make(structure: str, seed: int, causes: bool) -> Corpus:
    """A corpus of one structure, with a tenth of the pairs wrong, and causes if wanted."""
    rng = np.random.default_rng([seed, 2])
    corpus = plain(seed)
    STRUCTURES[structure](corpus, seed, rng)
    corpus.write_captions(np.flatnonzero(rng.random(PAIRS) < NOISE), rng)
    for plant in CAUSES if causes else ():
        plant(corpus, rng)
    return corpus


def write(corpus: Corpus, out: Path) -> Path:
    """Write the embeddings in the layout of clip-retrieval."""
    for name in ("img_emb", "text_emb", "metadata"):
        (out / name).mkdir(parents=True)
    np.save(out / "img_emb" / "img_emb_0.npy", corpus.image.astype(np.float16))
    np.save(out / "text_emb" / "text_emb_0.npy", corpus.text.astype(np.float16))
    pq.write_table(
        pa.table({
            "uid": [f"{number:032x}" for number in range(PAIRS)],
            "shard": [f"{number:05d}" for number in corpus.shard],
            "key": [f"{number:08d}" for number in range(PAIRS)],
            "caption": corpus.caption,
            "url": [f"https://{one}/i/{n}.jpg" for n, one in enumerate(corpus.host)],
            "is_noisy": corpus.wrong,
        }),
        out / "metadata" / "metadata_0.parquet",
    )  # fmt: skip
    return out


def scored(corpus: Corpus, out: Path) -> tuple[str, str]:
    """Score a corpus: paths of its score table, with the language, and of its embeddings."""
    embeddings = write(corpus, out / "embeddings")
    scores = out / "scores.parquet"
    ncclean.score([str(embeddings)], out=str(scores))
    table = pq.read_table(scores)
    place = [int(key) for key in table.column("key").to_pylist()]
    table = table.append_column("language", pa.array(corpus.language[place], pa.string()))
    pq.write_table(table, scores)
    return str(scores), str(embeddings)


def judged(cause: Any, corpus: Corpus, scores: str, clusters: str | None) -> dict[str, Any]:
    """What is true of a reported group: its share of wrong pairs, and which cause it names."""
    join = f"JOIN '{clusters}' AS clusters USING (shard, key, caption_number)" if clusters else ""
    rows = duckdb.sql(
        f"SELECT key::INT FROM '{scores}' AS scores {join} WHERE {cause.condition}"
    ).fetchall()
    members = np.array([row[0] for row in rows], int)
    wrong = corpus.wrong[members]
    in_causes = np.zeros(PAIRS, bool)
    names = ""
    for name, of in corpus.planted.items():
        in_causes[of] = True
        own = np.intersect1d(members[wrong], of)
        if len(own) >= 0.5 * max(wrong.sum(), 1):
            names = name
    base = float(corpus.wrong[~in_causes].mean())
    return {
        "kind": cause.kind, "label": cause.label, "pairs": len(members),
        "rate": cause.rate.value, "low": cause.rate.low, "high": cause.rate.high,
        "outside": cause.outside.value, "truth": float(wrong.mean()), "is": names,
        "false": float(wrong.mean()) - base < MIN_EXCESS,
    }  # fmt: skip


def measure(structure: str, seed: int, causes: bool, out: Path) -> list[dict[str, Any]]:
    """Explain one corpus, with its embeddings and without."""
    corpus = make(structure, seed, causes)
    scores, embeddings = scored(corpus, out)
    rows = []
    for sources in ([embeddings], []):
        name = str(out / f"causes-{len(sources)}.parquet")
        explained = explain_scores([scores], name, embeddings=sources)
        found = [judged(one, corpus, scores, explained.clusters) for one in explained.causes]
        unsure = [judged(one, corpus, scores, explained.clusters) for one in explained.uncertain]
        rows.append({
            "structure": structure, "seed": seed, "causes": causes, "embeddings": bool(sources),
            "planted": sorted(corpus.planted), "reported": found, "uncertain": unsure,
            "tested": explained.tested,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--structures", nargs="+", choices=STRUCTURES, default=list(STRUCTURES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for number, structure in enumerate(arguments.structures):
        for causes in (False, True)[: 2 - number % 2]:
            place = arguments.out / f"{number}-{causes:d}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            for row in measure(structure, arguments.seed + number, causes, place):
                rows.append(row)
                found = {one["is"] for one in row["reported"]} - {""}
                false = [f"{o['kind']}: {o['label']}" for o in row["reported"] if o["false"]]
                print(structure, "with" if causes else "without", "causes,",
                      "embeddings" if row["embeddings"] else "table alone", "missed",
                      sorted(set(row["planted"]) - found), "false", false,
                      len(row["uncertain"]), "unsure", flush=True)  # fmt: skip
            shutil.rmtree(place)
    if arguments.record is not None:
        settings = {"pairs": PAIRS, "noise": NOISE, "min_excess": MIN_EXCESS}
        write_record(arguments.record, make_record(rows, settings=settings, seeds=[arguments.seed]))


if __name__ == "__main__":
    main()
