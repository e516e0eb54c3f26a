"""Ten causes planted in ten rendered corpora: how many are found, and what else is reported.

    python tests/benchmarks causes.rendered --out runs/causes [--corpora 10]
        [--models demo demo-noisy] [--record docs/records/causes.json]

A reported cause names a planted one if at least half of the wrong pairs that it selects are of that
one. A planted cause is found if one names it; `covered` is the share of its pairs that those which
name it select. A reported cause counts as false if its pairs are wrong in truth no more often than
the pairs in no planted cause, by the least excess that is reported. Its share is compared with the
pairs that are wrong in its way: near misses are those of `NEAR_MISSES`, all others mismatches.
Corpora without causes have the same traps, and random noise or none.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
from ncclean_pipelines.explain import Explain
from ncclean_pipelines.synth import Synth
from records import make_record, write_record
from sklearn.cluster import KMeans

import ncclean
from causes.planting import (
    NEAR_MISSES,
    PER_SHARD,
    SHARDS,
    Corpus,
    Sample,
    plant,
    read_corpus,
    write_corpus,
)
from ncclean.data.options import CorpusOptions
from ncclean.explaining.cause_table import Cause
from ncclean.explaining.options import ExplainOptions

MIN_EXCESS = 0.05
_OVERLAP = 0.5


def build(out: Path, seed: int, noise: float, causes: bool) -> Corpus:
    """Render a corpus and plant causes in it; its shards are in `out / shards`."""
    plain = out / "plain"
    corpus = CorpusOptions(pairs=SHARDS * PER_SHARD, shard_size=PER_SHARD)
    Synth(out=str(plain), corpus=corpus, noise=noise, held_out=0, seed=seed).run()
    samples = read_corpus(plain)
    needs_clusters = causes and seed % 2
    clusters = _clusters(plain, out / "plain-embeddings", seed) if needs_clusters else _no_cluster
    planted = plant(samples, clusters, seed, causes)
    write_corpus(planted, out / "shards")
    shutil.rmtree(plain)
    return planted


def _no_cluster(sample: Sample) -> int:
    return 0


def _clusters(shards: Path, embeddings: Path, seed: int) -> Callable[[Sample], int]:
    """Clusters of the images before anything is planted, eight of them, by another k-means."""
    table = embeddings.with_suffix(".parquet")
    ncclean.score([str(shards)], out=str(table), model="demo", embeddings=str(embeddings))
    files = sorted((embeddings / "img_emb").glob("*.npy"))
    vectors = np.concatenate([np.load(file) for file in files]).astype(np.float32)
    tables = sorted((embeddings / "metadata").glob("*.parquet"))
    uids = [uid for one in tables for uid in pq.read_table(one).column("uid").to_pylist()]
    labels = KMeans(8, n_init=2, random_state=seed + 1).fit_predict(vectors)
    cluster = dict(zip(uids, map(int, labels), strict=True))
    shutil.rmtree(embeddings)
    return lambda sample: cluster[sample.facts["uid"]]


def judge(
    found: list[Cause], corpus: Corpus, scores: str, joins: dict[str, str]
) -> tuple[dict[str, str], dict[str, float], list[dict[str, Any]]]:
    """Which planted causes were found, by what, and what is true of each reported one."""
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE scores AS SELECT * FROM '{scores}' WHERE status = 'ok'")
    for name, path in joins.items():
        keys = "uid" if name == "sources" else "shard, key, caption_number"
        connection.execute(
            f"CREATE OR REPLACE TABLE scores AS SELECT * FROM scores JOIN '{path}' USING ({keys})"
        )
    in_causes = {uid for cause in corpus.groups for uid in corpus.of(cause)}
    wrong = {s.facts["uid"] for s in corpus.samples if s.facts["is_noisy"]}
    near = wrong & set().union(*map(corpus.of, NEAR_MISSES))
    wrong_by = {"near miss": near, "mismatch": wrong - near}
    everyone = {s.facts["uid"] for s in corpus.samples}
    base = len(wrong - in_causes) / max(len(everyone - in_causes), 1)
    selected: dict[str, set[str]] = {}
    by: dict[str, list[str]] = {}
    reported = []
    for cause in found:
        condition = cause.condition.replace("clusters.", "")
        members = {
            row[0]
            for row in connection.execute(f"SELECT uid FROM scores WHERE {condition}").fetchall()
        }
        rate = len(members & wrong) / max(len(members), 1)
        best = ""
        for planted in corpus.groups:
            own = corpus.of(planted)
            if len(members & own) >= _OVERLAP * len(members & wrong) > 0:
                best = planted
                selected.setdefault(planted, set()).update(members & own)
                by.setdefault(planted, []).append(f"{cause.kind}: {cause.label}")
        reported.append(
            {
                "kind": cause.kind,
                "label": cause.label,
                "outcome": cause.outcome,
                "pairs": cause.pairs,
                "rate": cause.rate.value,
                "low": cause.rate.low,
                "high": cause.rate.high,
                "truth": len(members & wrong_by[cause.outcome]) / max(len(members), 1),
                "is": best,
                "of_causes": len(members & in_causes) / max(len(members), 1),
                "false": rate - base < MIN_EXCESS,
            }
        )
    names = {planted: "; ".join(several) for planted, several in by.items()}
    covered = {
        planted: len(members) / len(corpus.of(planted)) for planted, members in selected.items()
    }
    return names, covered, reported


def measure(out: Path, corpus: Corpus, model: str) -> dict[str, Any]:
    """Score and explain one corpus."""
    place = out / model
    scores = str(place / "scores.parquet")
    place.mkdir()
    ncclean.score(
        [str(out / "shards")],
        out=scores,
        model=model,
        words=True,
        embeddings=str(place / "embeddings"),
    )
    explained = (
        Explain(
            scores=[scores],
            out=str(place / "causes.parquet"),
            embeddings=[str(place / "embeddings")],
            join=[f"sources={out / 'shards' / 'sources.parquet'}"],
            options=ExplainOptions(by=["source"], min_excess=MIN_EXCESS),
        )
        .run()
        .summary
    )
    joins = {"sources": f"{out}/shards/sources.parquet", "clusters": str(explained.clusters)}
    found, covered, reported = judge(list(explained.causes), corpus, scores, joins)
    return {
        "model": model,
        "planted": {cause: len(corpus.of(cause)) for cause in corpus.groups},
        "found": found,
        "covered": covered,
        "reported": reported,
        "tested": explained.tested,
        "seconds": explained.seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--corpora", type=int, default=10)
    parser.add_argument("--without", type=int, default=4, help="corpora without causes")
    parser.add_argument("--models", nargs="+", default=["demo", "demo-noisy"])
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    trials = [(seed, 0.1, True) for seed in range(arguments.corpora)]
    trials += [(100 + seed, 0.1 * (seed % 2), False) for seed in range(arguments.without)]
    rows: list[dict[str, Any]] = []
    for seed, noise, causes in trials:
        place, done = arguments.out / str(seed), arguments.out / f"{seed}.json"
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            corpus = build(place, seed, noise, causes)
            several = [measure(place, corpus, model) for model in arguments.models]
            facts = {"seed": seed, "noise": noise, "causes": causes}
            done.write_text(json.dumps([facts | row for row in several]))
            shutil.rmtree(place)
        for row in json.loads(done.read_text()):
            rows.append(row)
            missed = sorted(set(row["planted"]) - set(row["found"]))
            false = [f"{one['kind']}: {one['label']}" for one in row["reported"] if one["false"]]
            print(seed, row["model"], "missed", missed, len(row["reported"]), "reported, false",
                  false, flush=True)  # fmt: skip
    if arguments.record is not None:
        settings = {"pairs": SHARDS * PER_SHARD, "min_excess": MIN_EXCESS}
        seeds = list(range(arguments.corpora))
        write_record(arguments.record, make_record(rows, settings=settings, seeds=seeds))


if __name__ == "__main__":
    main()
