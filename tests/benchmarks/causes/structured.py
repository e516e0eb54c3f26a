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

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from corpora import unit, write_embeddings
from records import Row, benchmark

import ncclean
from causes.judging import MIN_EXCESS, Explained, Truth
from ncclean.explaining.explain_scores import explain_scores

PAIRS, DIM, TOPICS, NOISE, SHARD = 6000, 128, 20, 0.1, 500
_NEAR = 0.9  # noise of a vector in the average corpus, by the length of its concept


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

    @property
    def truth(self) -> Truth:
        """Which pairs are wrong, and by which cause."""

        def uids(places: np.ndarray) -> set[str]:
            return {f"{place:032x}" for place in places}

        planted = {name: uids(of[self.wrong[of]]) for name, of in self.planted.items()}
        wrong = uids(np.flatnonzero(self.wrong))
        return Truth(uids(np.arange(PAIRS)), {"mismatch": wrong}, planted)

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
    topics = unit(rng.normal(size=(TOPICS, DIM)))
    topic = rng.integers(TOPICS, size=PAIRS)
    concept = unit(topics[topic] + 1.08 * rng.normal(size=(PAIRS, DIM)) / np.sqrt(DIM))
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


def embed(corpus: Corpus, seed: int) -> None:
    """Set the vectors from concepts and noise; the two towers have means of their own."""
    rng = np.random.default_rng([seed, 1])
    means = 0.8 * unit(rng.normal(size=(2, DIM)))

    def side(mean: np.ndarray, noise: np.ndarray) -> np.ndarray:
        random = rng.normal(size=corpus.concept.shape) / np.sqrt(DIM)
        return unit(mean + corpus.concept + noise[:, None] * random)

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


def _some(share: float, rng: np.random.Generator) -> np.ndarray:
    return np.flatnonzero(rng.random(PAIRS) < share)


def language(share: float, corpus: Corpus, rng: np.random.Generator) -> np.ndarray:
    """Pairs of another language, in its own words."""
    of = _some(share, rng)
    corpus.language[of] = "ja"
    corpus.caption[of] = [_caption(one, rng, "j", 5, 9) for one in corpus.topic[of]]
    return of


def topics(count: int, corpus: Corpus, rng: np.random.Generator) -> np.ndarray:
    """Topics: a cluster of images each, with the words of its captions."""
    return np.flatnonzero(corpus.topic < count)


def short(share: float, corpus: Corpus, rng: np.random.Generator) -> np.ndarray:
    """Captions of two words."""
    of = _some(share, rng)
    corpus.caption[of] = [_caption(one, rng, "", 2, 2) for one in corpus.topic[of]]
    return of


def host(share: float, corpus: Corpus, rng: np.random.Generator) -> np.ndarray:
    """One host that has most pairs, or some."""
    of = _some(share, rng)
    corpus.host[of] = "large.example"
    return of


def topical_host(share: float, corpus: Corpus, rng: np.random.Generator) -> np.ndarray:
    """A host that has all pairs of three topics beside others."""
    of = np.flatnonzero((rng.random(PAIRS) < share) | (corpus.topic < 3))
    corpus.host[of] = "large.example"
    return of


IMAGE, TEXT, BOTH = ("image",), ("text",), ("image", "text")
Group = Callable[[Corpus, np.random.Generator], np.ndarray]
# The group whose vectors are noisier, of which sides, and its AUROC; of shards the largest noise.
STRUCTURES: dict[str, tuple[Group, tuple[str, ...], float] | float] = {
    "language .96": (partial(language, 0.07), TEXT, 0.96),
    "language .90": (partial(language, 0.07), TEXT, 0.90),
    "language .80": (partial(language, 0.12), TEXT, 0.80),
    "language .65": (partial(language, 0.10), TEXT, 0.65),
    "language .92, a third": (partial(language, 0.33), TEXT, 0.92),
    "topic .96": (partial(topics, 1), BOTH, 0.96),
    "topic .85": (partial(topics, 1), BOTH, 0.85),
    "topic .75": (partial(topics, 2), BOTH, 0.75),
    "images of topics .90": (partial(topics, 3), IMAGE, 0.90),
    "captions of topics .90": (partial(topics, 4), TEXT, 0.90),
    "short captions .95": (partial(short, 0.1), TEXT, 0.95),
    "short captions .85": (partial(short, 0.2), TEXT, 0.85),
    "short captions .70": (partial(short, 0.05), TEXT, 0.70),
    "shards to 1.6": 1.6,
    "shards to 2.2": 2.2,
    "shards to 3": 3.0,
    "host .93, 70 %": (partial(host, 0.7), BOTH, 0.93),
    "host .88, 90 %": (partial(host, 0.9), TEXT, 0.88),
    "host .85, 6 %": (partial(host, 0.06), IMAGE, 0.85),
    "topical host .95": (partial(topical_host, 0.4), BOTH, 0.95),
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
    corpus, kind = plain(seed), STRUCTURES[structure]
    if isinstance(kind, float):
        noise = rng.uniform(_NEAR, kind, corpus.shard.max() + 1)
        corpus.text_noise[:] = corpus.image_noise[:] = noise[corpus.shard]
        embed(corpus, seed)
    else:
        group, sides, target = kind
        harder(corpus, group(corpus, rng), sides, target, seed)
    corpus.write_captions(np.flatnonzero(rng.random(PAIRS) < NOISE), rng)
    for plant in CAUSES if causes else ():
        plant(corpus, rng)
    return corpus


def write(corpus: Corpus, out: Path) -> str:
    """Write the embeddings in the layout of clip-retrieval."""
    columns = {
        "uid": [f"{number:032x}" for number in range(PAIRS)],
        "shard": [f"{number:05d}" for number in corpus.shard],
        "key": [f"{number:08d}" for number in range(PAIRS)],
        "caption": corpus.caption,
        "url": [f"https://{one}/i/{n}.jpg" for n, one in enumerate(corpus.host)],
        "is_noisy": corpus.wrong,
    }
    return str(write_embeddings(out, corpus.image, corpus.text, columns))


def scored(corpus: Corpus, embeddings: str, scores: str) -> None:
    """Score a corpus; its table also gets the language."""
    ncclean.score([embeddings], out=scores)
    table = pq.read_table(scores)
    place = [int(key) for key in table.column("key").to_pylist()]
    table = table.append_column("language", pa.array(corpus.language[place], pa.string()))
    pq.write_table(table, scores)


def causes(
    out: Path, structures: tuple[str, ...] = tuple(STRUCTURES), seed: int = 0
) -> Iterator[Row]:
    """A row for each structure, with and without causes, with and without embeddings."""
    out.mkdir(parents=True, exist_ok=True)
    trials = (
        (*one, has) for one in enumerate(structures) for has in (False, True)[: 2 - one[0] % 2]
    )
    for number, structure, has_causes in trials:
        corpus = make(structure, seed + number, has_causes)
        with tempfile.TemporaryDirectory(dir=out) as name:
            embeddings, scores = write(corpus, Path(name, "e")), str(Path(name, "s.parquet"))
            scored(corpus, embeddings, scores)
            for sources in ([embeddings], []):
                table = str(Path(name, f"causes-{len(sources)}.parquet"))
                summary = explain_scores([scores], table, embeddings=sources)
                judged = corpus.truth.judge(Explained(scores, (), None, summary))
                facts = {"structure": structure, "seed": seed + number, "causes": has_causes}
                yield {**facts, "embeddings": bool(sources), **judged}


if __name__ == "__main__":
    benchmark(causes, pairs=PAIRS, noise=NOISE, min_excess=MIN_EXCESS)
