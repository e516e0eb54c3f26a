"""Ten causes planted in ten rendered corpora: how many are found, and what else is reported.

    python tests/benchmarks causes.rendered --out runs/causes [--corpora 10]
        [--models demo demo-noisy] [--record docs/records/causes.json]

A cause counts as found if a reported one selects mostly its wrong pairs, and most of them; or
nearly the pairs that the planted condition selects (Jaccard index of one half). A reported cause
counts as false if its pairs are wrong in truth no more often than the pairs in no planted cause, by
the least excess that is reported. Corpora without causes have the same traps and random noise.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from ncclean_pipelines.explain import Explain
from ncclean_pipelines.synth import Synth
from records import make_record, write_record
from sklearn.cluster import KMeans

import ncclean
from causes.planting import PER_SHARD, SHARDS, Corpus, Sample, plant, read_corpus, write_corpus
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
    planted = plant(samples, _clusters(samples, seed), seed, causes)
    write_corpus(planted, out / "shards")
    shutil.rmtree(plain)
    return planted


def _clusters(samples: list[Sample], seed: int) -> Any:
    """Clusters of the images by what a person would sort them by: their mean colours in a grid."""
    import io

    from PIL import Image

    vectors = np.stack(
        [
            np.asarray(Image.open(io.BytesIO(s.image)).convert("RGB").resize((4, 4))).ravel() / 255
            for s in samples
        ]
    )
    labels = KMeans(8, n_init=1, random_state=seed).fit_predict(vectors)
    places = {id(sample): int(label) for sample, label in zip(samples, labels, strict=True)}
    return lambda sample: places[id(sample)]


def judge(
    found: list[Cause], corpus: Corpus, scores: str, joins: dict[str, str]
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Which planted causes were found, by what, and what is true of each reported one."""
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE scores AS SELECT * FROM '{scores}' WHERE status = 'ok'")
    for name, path in joins.items():
        columns = "uid" if name == "sources" else "shard, key, caption_number"
        connection.execute(
            f"CREATE OR REPLACE TABLE scores AS SELECT scores.*, {name}_ AS {name} FROM scores "
            f"JOIN (SELECT {columns}, {'source' if name == 'sources' else 'cluster'} AS {name}_ "
            f"FROM '{path}') USING ({columns})"
        )
    in_causes = {uid for cause in corpus.groups for uid in corpus.of(cause)}
    wrong = {s.facts["uid"] for s in corpus.samples if s.facts["is_noisy"]}
    everyone = {s.facts["uid"] for s in corpus.samples}
    base = len(wrong - in_causes) / max(len(everyone - in_causes), 1)
    names: dict[str, str] = {}
    reported = []
    for cause in found:
        condition = cause.condition.replace("clusters.cluster", "clusters")
        condition = condition.replace("(source)", "(sources)")
        members = {
            row[0]
            for row in connection.execute(f"SELECT uid FROM scores WHERE {condition}").fetchall()
        }
        rate = len(members & wrong) / max(len(members), 1)
        best = ""
        for planted, group in corpus.groups.items():
            own = corpus.of(planted)
            is_it = len(members & own) >= _OVERLAP * max(len(members), len(own))
            is_group = len(members & group) >= _OVERLAP * len(members | group)
            if is_it or is_group:
                names.setdefault(planted, f"{cause.kind}: {cause.label}")
                best = planted
        reported.append(
            {
                "kind": cause.kind,
                "label": cause.label,
                "outcome": cause.outcome,
                "pairs": cause.pairs,
                "rate": cause.rate.value,
                "low": cause.rate.low,
                "high": cause.rate.high,
                "truth": rate,
                "is": best,
                "of_causes": len(members & in_causes) / max(len(members), 1),
                "false": rate - base < MIN_EXCESS,
            }
        )
    return names, reported


def measure(out: Path, seed: int, model: str, noise: float, causes: bool) -> dict[str, Any]:
    """Plant, score and explain one corpus."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    corpus = build(out, seed, noise, causes)
    scores = str(out / "scores.parquet")
    ncclean.score(
        [str(out / "shards")],
        out=scores,
        model=model,
        words=True,
        embeddings=str(out / "embeddings"),
    )
    explained = (
        Explain(
            scores=[scores],
            out=str(out / "causes.parquet"),
            embeddings=[str(out / "embeddings")],
            join=[f"sources={out / 'shards' / 'sources.parquet'}"],
            options=ExplainOptions(by=["source"], min_excess=MIN_EXCESS),
        )
        .run()
        .summary
    )
    joins = {"sources": f"{out}/shards/sources.parquet", "clusters": str(explained.clusters)}
    found, reported = judge(list(explained.causes), corpus, scores, joins)
    return {
        "seed": seed,
        "model": model,
        "noise": noise,
        "causes": causes,
        "planted": {cause: len(corpus.of(cause)) for cause in corpus.groups},
        "found": found,
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
    rows = []
    for model in arguments.models:
        trials = [(seed, 0.1, True) for seed in range(arguments.corpora)]
        trials += [(100 + seed, 0.1 * (seed % 2), False) for seed in range(arguments.without)]
        for seed, noise, causes in trials:
            place = arguments.out / f"{model}-{seed}"
            done = arguments.out / f"{model}-{seed}.json"
            if not done.exists():
                row = measure(place, seed, model, noise, causes)
                (place / "shards" / "sources.parquet").rename(place / "sources.parquet")
                shutil.rmtree(place / "shards")
                done.write_text(json.dumps(row))
            rows.append(json.loads(done.read_text()))
            row = rows[-1]
            missed = sorted(set(row["planted"]) - set(row["found"]))
            false = [one for one in row["reported"] if one["false"]]
            print(model, seed, "missed", missed, "reported", len(row["reported"]), "false", false)
    if arguments.record is not None:
        settings = {"pairs": SHARDS * PER_SHARD, "min_excess": MIN_EXCESS}
        seeds = list(range(arguments.corpora))
        write_record(arguments.record, make_record(rows, settings=settings, seeds=seeds))


if __name__ == "__main__":
    main()
