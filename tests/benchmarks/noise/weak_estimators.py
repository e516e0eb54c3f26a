"""Embeddings of matched pairs by CLIPs from hardly to well trained, for `noise.donors`.

    python tests/benchmarks noise.weak_estimators --out FOLDER [--cifar10n FOLDER]
        [--flickr8k FOLDER]

FOLDER gets a `.npz` of each model: of both bundled estimators on rendered pairs; with `--cifar10n`
of a small CLIP that is trained on photographs and templates of their true classes, again and again
with more of them, as `photographs-SAMPLES.npz`; with `--flickr8k` of one that learns the training
photographs, on 2,000 others with one caption and with five in a row. No model sees what it embeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from cifar10n.corpora import Photographs, train, write_corpus
from corpora import read_embeddings, rendered
from flickr8k.corpora import JSON, captions_in_a_row, learnt, source
from ncclean_pipelines.score import Score
from records import Row, benchmark
from sklearn.metrics import roc_auc_score

from ncclean.base.config import ScoreOptions
from ncclean.data.options import SourceOptions

HELD_OUT = 8_000


def embedded(
    name: str, pairs: Path, model: str, out: Path, options: SourceOptions | None = None
) -> Row:
    """Embed pairs into an `.npz`; how well the model tells matched from permuted ones."""
    work = out / "work" / name
    Score(
        shards=[str(pairs)], out=f"{work}.parquet", model=model, shift=0.2, precision="fp32",
        options=ScoreOptions(embeddings=str(work)), source_options=options or SourceOptions(),
    ).run()  # fmt: skip
    image, text, _ = read_embeddings(work)
    np.savez(out / f"{name}.npz", image=image, text=text)
    cosines = [np.einsum("nd,nd->n", image, side) for side in (text, np.roll(text, 1, axis=0))]
    labels = np.repeat([1, 0], len(image))
    return {"file": f"{name}.npz", "auroc": float(roc_auc_score(labels, np.concatenate(cosines)))}


def embeddings(
    out: Path, cifar10n: Path | None = None, flickr8k: Path | None = None, seed: int = 0,
    pairs: int = HELD_OUT,
) -> Iterator[Row]:  # fmt: skip
    """A row for each file."""
    scenes = rendered(out / "work" / "scenes", pairs=pairs, seed=seed)
    for model in ("demo", "demo-noisy"):
        yield embedded(f"bundled-{model}", scenes, model, out)
    if cifar10n is not None:
        photographs = Photographs.read(cifar10n, seed)
        folder = out / "work" / "photographs"
        write_corpus(photographs.learnt, "clean", cifar10n, folder / "learnt", seed)
        others = photographs.scored[:pairs]
        write_corpus(others, "clean", cifar10n, folder / "others", seed)
        for samples in (8_000, 32_000, 128_000):
            model = train(folder / "learnt", None, folder / f"{samples}", seed, samples // 128)
            yield embedded(f"photographs-{samples:06}", folder / "others", model, out)
    if flickr8k is not None:
        folder = out / "work" / "flickr8k"
        options, of_others = source(flickr8k, folder), source(flickr8k, folder, ())
        tables = {"": captions_in_a_row(flickr8k, folder, 1)}
        tables["-five"] = captions_in_a_row(flickr8k, folder, 5)
        for samples in (8_000, 16_000, 32_000):
            model = learnt(
                flickr8k / JSON, folder / f"{samples}", samples // 256, seed, source_options=options
            )
            for kind, table in tables.items():
                name = f"flickr8k{kind}-{samples:06}"
                yield embedded(name, table, model, out, of_others)


if __name__ == "__main__":
    benchmark(embeddings)
