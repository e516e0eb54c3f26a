"""What rules and scores make of permuted captions with real pretrained CLIPs on real photographs.

    python tests/benchmarks noise.real_clip --data FOLDER [--draws 20] [--scores]
        [--record docs/records/real-clip.json]

FOLDER holds one `.npz` a corpus, with `image` and `text`: (n, d) embeddings of matched pairs, in
the same order. Nothing of them is in this repository. In each draw the captions of a fifth of the
pairs are permuted, and the corpus is scored and judged as a user would do it: `ncclean score` from
the embeddings, `ncclean evaluate noise` on the table.

With `--scores` scores that cost more are compared, `neg_clip_loss` with `--pool`, and
`--canonical`: how well each ranks mismatched pairs below matched ones, here and in rendered corpora
with a fifth of permuted captions, of captions with one wrong word, or of boilerplate, embedded by
both bundled estimators.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from corpora import rendered, write_embeddings
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.score import Score
from records import Row, benchmark
from upath import UPath

from ncclean.base.config import ScoreOptions
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


def rules(data: Path, draws: int) -> Iterator[Row]:
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


MODELS, KINDS, POOL = ("demo", "demo-noisy"), ("ncr", "hard", "junk"), 32_768
_WAYS = {
    "": (ScoreOptions(), ("similarity", "neg_clip_loss")),
    ", pool": (ScoreOptions(pool=POOL), ("neg_clip_loss",)),
    "canonical": (ScoreOptions(canonical=True), ("canonical_similarity",)),
}


def aurocs(embeddings: str, scale: float | str, table: Path) -> dict[str, float]:
    """AUROC of each candidate; none of those that need more pairs."""
    found = {}
    for way, (options, columns) in _WAYS.items():
        Score(
            shards=[embeddings], out=str(table), scale=scale, options=options, overwrite=True
        ).run()
        for score in EvaluateNoise(scores=[str(table)]).run().summary.scores:
            auroc = score.kinds[0].report.auroc
            if score.column in columns and not np.isnan(auroc):
                found[way if way == "canonical" else f"{score.column}{way}"] = auroc
    return found


def candidates(data: Path, pairs: int, draws: int) -> Iterator[Row]:
    """A row for each set of embeddings."""
    for file in sorted(data.glob("*.npz")):
        trials = []
        for seed in range(draws):
            with tempfile.TemporaryDirectory(prefix="ncclean-candidates-") as name:
                noisy = permuted(file, Path(name), seed)
                trials.append(aurocs(noisy, 100.0, Path(name, "scores.parquet")))
        yield {"corpus": file.stem, "noise": "ncr", "scores": _means(trials)}
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="ncclean-candidates-") as name:
            folder = Path(name)
            shards = rendered(folder / "shards", pairs=pairs, noise={kind: SHARE})
            for model in MODELS:
                embeddings = str(folder / model)
                Score(
                    shards=[str(shards)], out=f"{embeddings}.parquet", model=model, shift=0.2,
                    precision="fp32", options=ScoreOptions(embeddings=embeddings),
                ).run()  # fmt: skip
                scores = _means([aurocs(embeddings, model, folder / "scores.parquet")])
                yield {"corpus": f"rendered, {model}", "noise": kind, "scores": scores}


def _means(trials: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"auroc": round(float(np.mean([trial[name] for trial in trials])), 5)}
        for name in trials[0]
    }


def photographs(
    data: Path, draws: int = 20, scores: bool = False, pairs: int = 16_000
) -> Iterator[Row]:
    """What rules keep, or with `--scores` how scores rank; rendered corpora have `pairs`."""
    yield from candidates(data, pairs, draws) if scores else rules(data, draws)
    return {"seeds": list(range(draws))}


if __name__ == "__main__":
    benchmark(photographs, scale=100.0, share=SHARE, pool=POOL)
