"""What rules keep of permuted captions with real pretrained CLIPs on real photographs.

    python tests/benchmarks noise.real_clip --data FOLDER [--draws 20]
        [--record docs/records/real-clip.json]

FOLDER holds one `.npz` a corpus, with `image` and `text`: (n, d) embeddings of matched pairs, in
the same order. Nothing of them is in this repository. In each draw the captions of a fifth of the
pairs are permuted, and the corpus is scored and judged as a user would do it: `ncclean score` from
the embeddings, `ncclean evaluate noise` on the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from corpora import write_embeddings
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.score import Score
from records import Row, benchmark
from upath import UPath

from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.storage.noisy_copy import write_noisy_copy

SHARE = 0.2


def permuted(file: Path, folder: Path, seed: int) -> str:
    """The embeddings of a file with a fifth of the captions permuted, as a folder."""
    arrays = np.load(file)
    captions = {"caption": [f"caption {row}" for row in range(len(arrays["image"]))]}
    matched = write_embeddings(folder / "matched", arrays["image"], arrays["text"], captions)
    shards = resolve_embeddings([str(matched)])
    copy = UPath(folder / "noisy")
    return write_noisy_copy(shards, None, copy, share=SHARE, pairs=10**9, seed=seed).noisy


def rules(data: Path, draws: int = 20) -> Iterator[Row]:
    """A row for each corpus: what its rules keep, in the mean of the draws."""
    for file in sorted(data.glob("*.npz")):
        kept: dict[str, dict[str, list[float]]] = {}
        for seed in range(draws):
            with tempfile.TemporaryDirectory(prefix="ncclean-real-clip-") as name:
                table = str(Path(name, "scores.parquet"))
                Score(shards=[permuted(file, Path(name), seed)], out=table, scale=100.0).run()
                evaluation = EvaluateNoise(scores=[table]).run().summary
            for rule in evaluation.rules:
                shares = kept.setdefault(rule.rule, {"clean_kept": [], "noise_kept": []})
                shares["clean_kept"].append(rule.clean_kept)
                shares["noise_kept"].append(1 - rule.noise_caught["all"])
        yield {
            "corpus": file.stem, "share": SHARE, "draws": draws,
            "rules": {
                rule: {
                    kind: {"mean": float(np.mean(values)), "deviation": float(np.std(values))}
                    for kind, values in shares.items()
                }
                for rule, shares in kept.items()
            },
        }  # fmt: skip
    return {"seeds": list(range(draws))}


if __name__ == "__main__":
    benchmark(rules, scale=100.0)
