"""Ten causes planted in ten rendered corpora: how many are found, and what else is reported.

    python tests/benchmarks causes.rendered --out runs/causes [--corpora 10]
        [--models demo demo-noisy] [--record docs/records/causes.json]

What counts as found and as false is said in `causes.judging`. A reported share is compared with the
pairs that are wrong in its way: near misses are those of `NEAR_MISSES`, all others mismatches.
Corpora without causes have the same traps, and random noise or none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from corpora import read_embeddings, rendered
from records import Row, benchmark
from sklearn.cluster import KMeans

import ncclean
from causes.judging import MIN_EXCESS, explained
from causes.planting import PER_SHARD, SHARDS, Sample, plant, read_corpus, write_corpus


def _clusters(shards: Path, out: Path, seed: int) -> Callable[[Sample], int]:
    """Clusters of the images before anything is planted, eight of them, by another k-means."""
    ncclean.score([str(shards)], out=f"{out}.parquet", model="demo", embeddings=str(out))
    image, _, table = read_embeddings(out)
    labels = KMeans(8, n_init=2, random_state=seed + 1).fit_predict(image)
    cluster = dict(zip(table.column("uid").to_pylist(), map(int, labels), strict=True))
    return lambda sample: cluster[sample.facts["uid"]]


def causes(
    out: Path, corpora: int = 10, without: int = 4, models: tuple[str, ...] = ("demo", "demo-noisy")
) -> Iterator[Row]:
    """A row for each corpus and model; `without` is the number of corpora without causes."""
    trials = [(seed, 0.1, True) for seed in range(corpora)]
    trials += [(100 + seed, 0.1 * (seed % 2), False) for seed in range(without)]
    out.mkdir(parents=True, exist_ok=True)
    for seed, noise, has_causes in trials:
        with tempfile.TemporaryDirectory(dir=out) as name:
            folder = Path(name)
            options = {"pairs": SHARDS * PER_SHARD, "shard_size": PER_SHARD, "duplicates": 0.01}
            options |= {"noise": {"ncr": noise} if noise else {}, "seed": seed}
            plain = rendered(folder / "plain", **options)
            clusters: Callable[[Sample], int] = lambda _: 0  # noqa: E731
            if has_causes and seed % 2:
                clusters = _clusters(plain, folder / "plain-embeddings", seed)
            corpus = plant(read_corpus(plain), clusters, seed, has_causes)
            write_corpus(corpus, folder / "shards")
            sources = f"sources={folder / 'shards' / 'sources.parquet'}"
            for model in models:
                (folder / model).mkdir()
                found = explained(
                    folder / "shards", folder / model, join=[sources],
                    score={"model": model, "words": True}, explain={"by": ["source"]},
                )  # fmt: skip
                facts = {"seed": seed, "noise": noise, "causes": has_causes, "model": model}
                yield {**facts, **corpus.truth.judge(found), "seconds": found.summary.seconds}
    return {"seeds": list(range(corpora))}


if __name__ == "__main__":
    benchmark(causes, pairs=SHARDS * PER_SHARD, min_excess=MIN_EXCESS)
