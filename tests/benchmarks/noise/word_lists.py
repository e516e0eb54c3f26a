"""Which word classes `--words` needs: the shipped list, or those of the corpus.

    python tests/benchmarks noise.word_lists --out runs/word-lists [--cifar10n FOLDER]
        [--flickr8k FOLDER] [--record docs/records/word-lists.json]

Rendered scenes with one wrong fact in a fifth of the captions; with `--cifar10n`, the folder of
`cifar10n.study`, 10,000 photographs with the labels of `worse`; with `--flickr8k`, the folder of
`flickr8k.study`, 2,000 photographs, a fifth with another's caption. Small estimators are trained
for the photographs, with `--passes` and `--steps`, and kept in --out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from cifar10n.corpora import Photographs, write_corpus
from corpora import rendered
from flickr8k.corpora import captions_in_a_row, estimator, source, spoilt
from ncclean_pipelines.score import Score
from records import Row, benchmark
from sklearn.metrics import roc_auc_score

from ncclean.base.config import FROM_CORPUS, ScoreOptions

_SCORES = ("similarity", "word_margin", "near_miss_score")
_CIFAR_PAIRS = 10_000
LISTS = {"shipped": None, "of the corpus": FROM_CORPUS}


def corpora(
    out: Path,
    cifar10n: Path | None,
    flickr8k: Path | None,
    pairs: int,
    passes: int,
    steps: int,
    seed: int,
) -> Iterator[tuple[str, Path, str]]:
    """Names, shards and models of the corpora that there is data for."""
    scenes = rendered(out / "scenes", pairs=pairs, noise={"hard": 0.2}, seed=11)
    yield "rendered, a wrong fact", scenes, "demo"
    if cifar10n is not None:
        folder = out / "cifar10n"
        photographs = Photographs.read(cifar10n, seed)
        model = photographs.estimator(cifar10n, folder, passes, seed)
        scored = photographs.scored[:_CIFAR_PAIRS]
        write_corpus(scored, "worse", cifar10n, folder / "worse", seed)
        yield "CIFAR-10N", folder / "worse", model
    if flickr8k is not None:
        folder = out / "flickr8k"
        model = estimator(flickr8k, folder, steps, seed)
        table, options = captions_in_a_row(flickr8k, folder, 1), source(flickr8k, folder, ())
        shards = spoilt(table, {"ncr": 0.2}, folder / "spoilt", seed, options)
        yield "Flickr8k, another caption", shards, model


def lists(
    out: Path,
    cifar10n: Path | None = None,
    flickr8k: Path | None = None,
    pairs: int = 4000,
    passes: int = 3,
    steps: int = 160,
    seed: int = 0,
) -> Iterator[Row]:
    """A row for each corpus and list."""
    table = str(out / "scores.parquet")
    for name, shards, model in corpora(out, cifar10n, flickr8k, pairs, passes, steps, seed):
        for which, path in LISTS.items():
            options = ScoreOptions(words=True, word_classes=path)
            Score(
                shards=[str(shards)], out=table, model=model, precision="fp32", options=options,
                calibrate_on="similarity", overwrite=True,
            ).run()  # fmt: skip
            yield {"corpus": name, "list": which, **measured(table)}


def measured(table: str) -> dict[str, Any]:
    """How the scores rank the captions that have a word to try."""
    columns = ", ".join(("is_noisy", *_SCORES))
    rows = duckdb.sql(f"SELECT {columns} FROM '{table}' WHERE status = 'ok'").fetchnumpy()
    tried = ~np.ma.getmaskarray(rows["word_margin"])
    clean = ~np.asarray(rows["is_noisy"])[tried].astype(bool)
    aurocs = {name: float(roc_auc_score(clean, rows[name][tried])) for name in _SCORES}
    return {"pairs": len(tried), "tried": float(tried.mean()), "auroc": aurocs}


if __name__ == "__main__":
    benchmark(lists)
