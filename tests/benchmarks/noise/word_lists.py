"""Which word classes `--words` needs: the shipped list, those of the corpus, or the right ones.

    python tests/benchmarks noise.word_lists --out runs/word-lists [--cifar10n FOLDER]
        [--flickr8k FOLDER] [--record docs/records/word-lists.json]

Rendered scenes with one wrong fact in a fifth of the captions; with `--cifar10n`, the folder of
`cifar10n.study`, 10,000 photographs with the labels of `worse`; with `--flickr8k`, the folder of
`flickr8k.study`, 2,000 photographs, a fifth with another's caption. Small estimators are trained
for the photographs, with `--passes` and `--steps`, and kept in --out. Each list is tried as it is
and with `every class`: those too whose words the estimator cannot tell apart.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from caption_parts.photographs import captions_in_a_row, spoilt
from cifar10n.corpora import parts, write_corpus, write_word_classes
from cifar10n.estimator import train
from flickr8k.study import estimator, small_images
from ncclean_pipelines.score import Score
from records import make_record, write_record
from sklearn.metrics import average_precision_score, roc_auc_score

from ncclean.base.config import FROM_CORPUS, ScoreOptions
from ncclean.data.synthetic import CorpusOptions
from ncclean.data.synthetic import corpus as rendered
from ncclean.execution import word_checks

_SCORES = ("similarity", "word_margin", "near_miss_score")
_CIFAR_PAIRS = 10_000
Corpus = tuple[str, Path, str, str | None]  # name, shards, model, the list that fits


def corpora(arguments: argparse.Namespace) -> Iterator[Corpus]:
    """The corpora that there is data for."""
    out, seed = arguments.out, arguments.seed
    scenes = out / "scenes"
    if not scenes.exists():
        noise = {"hard": 0.2}
        options = CorpusOptions(pairs=arguments.pairs, noise=noise, duplicates=0.0, seed=11)
        rendered.write_corpus(scenes, options)
    yield "rendered, a wrong fact", scenes, "demo", None
    if arguments.cifar10n is not None:
        folder = out / "cifar10n"
        learnt, scored, _ = parts(arguments.cifar10n, seed)
        write_corpus(scored[:_CIFAR_PAIRS], "worse", arguments.cifar10n, folder / "worse", seed)
        model = f"local-dir:{folder / 'est'}"
        if not (folder / "est" / "open_clip_config.json").exists():
            write_corpus(learnt, "clean", arguments.cifar10n, folder / "learnt", seed)
            train(folder / "learnt", arguments.passes, folder / "est", seed)
        yield "CIFAR-10N", folder / "worse", model, str(write_word_classes(folder / "words.txt"))
    if arguments.flickr8k is not None:
        folder = out / "flickr8k"
        images = small_images(arguments.flickr8k, folder)
        table = captions_in_a_row(arguments.flickr8k, folder, 1, ("val", "test"))
        model = estimator(arguments.flickr8k, images, folder, arguments.steps, seed)
        yield "Flickr8k", spoilt(table, images, "ncr", 0.2, seed), model, None


def rows(corpus: Corpus, out: Path) -> Iterator[dict[str, Any]]:
    """A row for each list, with the classes that are told apart and with every class."""
    name, shards, model, own = corpus
    lists = {"shipped": None, "of the corpus": FROM_CORPUS, "of the captions' nouns": own}
    tell = word_checks.may_be_told_apart
    for which, path in lists.items():
        if which != "shipped" and path is None:
            continue
        for every in (False, True):
            word_checks.may_be_told_apart = (lambda *_: True) if every else tell
            table = str(out / "scores.parquet")
            options = ScoreOptions(words=True, word_classes=path)
            summary = Score(
                shards=[str(shards)], out=table, model=model, precision="fp32", options=options,
                calibrate_on="similarity", overwrite=True,
            ).run().summary  # fmt: skip
            row = {"corpus": name, "list": which, "every class": every, **measured(table)}
            yield {**row, "near_miss_rate": list(summary.near_miss_rate)}  # type: ignore[union-attr]
    word_checks.may_be_told_apart = tell


def measured(table: str) -> dict[str, Any]:
    """How the scores rank the captions that have a word to try, and what is flagged of them."""
    columns = ", ".join(("is_noisy", "near_miss_probability", *_SCORES))
    sql = f"SELECT {columns} FROM '{table}' WHERE status = 'ok'"
    found = duckdb.execute(sql).fetchnumpy()
    tried = ~np.ma.getmaskarray(found["word_margin"])
    noisy = np.asarray(found["is_noisy"])[tried].astype(bool)
    flagged = np.ma.filled(found["near_miss_probability"][tried], 0.0) >= 0.5
    scores = {name: np.asarray(found[name][tried], dtype=float) for name in _SCORES}
    return {
        "pairs": len(tried),
        "tried": float(tried.mean()),
        "noisy": float(noisy.mean()),
        "auroc": {name: roc_auc_score(~noisy, score) for name, score in scores.items()},
        "precision": {name: average_precision_score(noisy, -s) for name, s in scores.items()},
        "flagged": int(flagged.sum()),
        "right": float(noisy[flagged].mean()) if flagged.any() else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--cifar10n", type=Path, metavar="FOLDER")
    parser.add_argument("--flickr8k", type=Path, metavar="FOLDER")
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = []
    for corpus in corpora(arguments):
        for row in rows(corpus, arguments.out):
            found.append(row)
            print(json.dumps(row), flush=True)
    if arguments.record is not None:
        settings = {name: getattr(arguments, name) for name in ("pairs", "passes", "steps")}
        record = make_record(found, settings=settings, seeds=[arguments.seed])
        write_record(arguments.record, record)


if __name__ == "__main__":
    main()
