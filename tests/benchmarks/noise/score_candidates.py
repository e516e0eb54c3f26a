"""Scores that could be columns: how well each ranks mismatched pairs below matched ones.

    python tests/benchmarks noise.score_candidates --data FOLDER [--pairs 16000] [--draws 5]
        [--record docs/records/score-candidates.json]

FOLDER holds `.npz` files of real embeddings as `real_clip.py` takes them: in each draw the
captions of a fifth of the pairs are permuted. Rendered corpora have a fifth of permuted captions,
of captions with one wrong word, or of boilerplate, and are embedded by both bundled estimators.

- `neg_clip_loss` in blocks of 256 and 2,048, and against a pool of up to 32,768 pairs;
- `image_z`, `caption_z`: the own cosine in deviations of the image's, the caption's, others;
- `canonical`: cosine after canonical correlation analysis, each half projected by the other's;
- `match`: logistic regression of the pairs as given against permuted ones on all of these, each
  half fitted on the other.

Of rendered corpora also what `noise_probability` on either score and on that of `auto` is worth.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
from ncclean_pipelines.score import Score
from records import make_record, write_record
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score

from ncclean.base.config import ScoreOptions
from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.storage.tables import table_metadata
from noise.real_clip import at_half

MODELS = ("demo", "demo-noisy")
KINDS = ("ncr", "hard", "junk")
SHARE = 0.2
BLOCK, SMALL_BLOCK, POOL = 2048, 256, 32_768
_RHO, _PAIRS_A_DIMENSION = 1e-3, 10


def candidates(image: np.ndarray, text: np.ndarray, scale: float, seed: int) -> dict[str, Any]:
    """(n,) of each candidate, higher for matched pairs; None where there are too few pairs."""
    rng = np.random.default_rng([seed, 1])
    n = len(image)
    found: dict[str, Any] = {"similarity": np.einsum("nd,nd->n", image, text)}
    found["neg_clip_loss, blocks of 256"] = _by_block(image, text, scale, SMALL_BLOCK, rng)[0]
    normalised, *z = _by_block(image, text, scale, BLOCK, rng)
    found["neg_clip_loss"] = normalised
    pool = rng.choice(n, min(POOL, n), replace=False)
    found["neg_clip_loss, pool"] = _pooled(image, text, scale, pool)
    found["image_z"], found["caption_z"] = z
    half = rng.permutation(n) < n // 2
    found["canonical"] = _canonical(image, text, half, rng)
    found["match"] = _match(image, text, scale, half, rng)
    return found


def _by_block(
    image: np.ndarray, text: np.ndarray, scale: float, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`neg_clip_loss`, `image_z` and `caption_z` of random blocks."""
    out = np.empty((3, len(image)))
    for rows in np.array_split(rng.permutation(len(image)), max(1, round(len(image) / size))):
        cosines = image[rows] @ text[rows].T
        own, count = cosines.diagonal().copy(), len(rows)
        out[0, rows] = own - (_lse(scale * cosines, 1) + _lse(scale * cosines, 0)) / (2 * scale)
        np.fill_diagonal(cosines, np.nan)
        for side, axis in ((1, 1), (2, 0)):
            mean, deviation = np.nanmean(cosines, axis), np.nanstd(cosines, axis)
            out[side, rows] = (own - mean) / deviation if count > 2 else 0
    return out[0], out[1], out[2]


def _pooled(image: np.ndarray, text: np.ndarray, scale: float, pool: np.ndarray) -> np.ndarray:
    own = np.einsum("nd,nd->n", image, text)
    is_in = np.isin(np.arange(len(image)), pool)
    sides = []
    for mine, theirs in ((image, text[pool]), (text, image[pool])):
        parts = [
            _lse(scale * (mine[at : at + 512] @ theirs.T), 1) for at in range(0, len(mine), 512)
        ]
        whole = np.concatenate(parts)
        sides.append(np.where(is_in, whole, np.logaddexp(whole, scale * own)))
    return np.asarray(own - sum(sides) / (2 * scale))


def _lse(logits: np.ndarray, axis: int) -> np.ndarray:
    most = logits.max(axis, keepdims=True)
    return np.asarray((np.log(np.exp(logits - most).sum(axis, keepdims=True)) + most).squeeze(axis))


def _canonical(
    image: np.ndarray, text: np.ndarray, half: np.ndarray, rng: np.random.Generator
) -> np.ndarray | None:
    if min(half.sum(), (~half).sum()) < _PAIRS_A_DIMENSION * image.shape[1]:
        return None
    out = np.empty(len(image))
    for fitted, applied in ((half, ~half), (~half, half)):
        v, t = image[fitted], text[fitted]
        project = _projections(v, t, rng)
        x, y = project(image[applied], text[applied])
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        out[applied] = np.einsum("nd,nd->n", x, y) / np.maximum(norms, 1e-12)
    return out


def _projections(v: np.ndarray, t: np.ndarray, rng: np.random.Generator) -> Any:
    """Both sides into the canonical directions that permuted partners do not reach."""
    means = v.mean(0), t.mean(0)
    whiten = [_inverse_root(np.cov(side.T)) for side in (v, t)]
    x, y = ((side - mean) @ w for side, mean, w in zip((v, t), means, whiten, strict=True))
    left, strength, right = np.linalg.svd(x.T @ y / len(x))
    by_chance = np.linalg.svd(x.T @ y[rng.permutation(len(y))] / len(x), compute_uv=False)[0]
    kept = strength > by_chance
    bases = [
        w @ (basis[:, kept] * strength[kept])
        for w, basis in zip(whiten, (left, right.T), strict=True)
    ]
    return lambda a, b: ((a - means[0]) @ bases[0], (b - means[1]) @ bases[1])


def _inverse_root(covariance: np.ndarray) -> np.ndarray:
    dim = len(covariance)
    values, vectors = np.linalg.eigh(covariance + _RHO * np.trace(covariance) / dim * np.eye(dim))
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


def _match(
    image: np.ndarray, text: np.ndarray, scale: float, half: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The regression's score: pairs as given are 1, the same images with others' captions 0."""

    def features(captions: np.ndarray) -> np.ndarray:
        own = np.einsum("nd,nd->n", image, captions)
        columns = [own, *_by_block(image, captions, scale, BLOCK, rng)]
        if (canonical := _canonical(image, captions, half, rng)) is not None:
            columns.append(canonical)
        return np.stack(columns, 1)

    given, permuted = features(text), features(text[rng.permutation(len(text))])
    centre, spread = given.mean(0), given.std(0)
    given, permuted = (given - centre) / spread, (permuted - centre) / spread
    out = np.empty(len(image))
    for fitted, applied in ((half, ~half), (~half, half)):
        model = LogisticRegression(max_iter=500)
        sides = np.concatenate([given[fitted], permuted[fitted]])
        model.fit(sides, np.repeat([1, 0], fitted.sum()))
        out[applied] = model.decision_function(given[applied])
    return out


def real(folder: Path, draws: int) -> Iterator[dict[str, Any]]:
    """Each set of embeddings with a fifth of the captions permuted."""
    for file in sorted(folder.glob("*.npz")):
        arrays = np.load(file)
        image, text = (arrays[side].astype(np.float32) for side in ("image", "text"))
        trials = []
        for draw in range(draws):
            rng = np.random.default_rng(draw)
            moved = rng.choice(len(text), round(SHARE * len(text)), replace=False)
            captions = text.copy()
            captions[moved] = text[np.roll(moved, 1)]
            wrong = np.isin(np.arange(len(text)), moved)
            trials.append(_ranked(candidates(image, captions, 100.0, draw), wrong))
        yield {"corpus": file.stem, "noise": "ncr", "pairs": len(image), "scores": _mean(trials)}


def rendered(pairs: int) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="ncclean-candidates-") as scratch:
            shards = str(Path(scratch) / "shards")
            write_corpus(
                Path(shards), CorpusOptions(pairs=pairs, noise={kind: SHARE}, duplicates=0.0)
            )
            for model in MODELS:
                folder, table = Path(scratch) / model, Path(scratch) / f"{model}.parquet"
                Score(
                    shards=[shards], out=str(table), model=model, pretrained=None, shift=0.2,
                    precision="fp32", options=ScoreOptions(embeddings=str(folder)),
                ).run()  # fmt: skip
                image, text = (
                    np.concatenate([np.load(each) for each in sorted((folder / side).iterdir())])
                    for side in ("img_emb", "text_emb")
                )
                wrong = ds.dataset(folder / "metadata").to_table(["is_noisy"])["is_noisy"]
                scale = float(table_metadata(table)["scale"])
                found = candidates(image.astype(np.float32), text.astype(np.float32), scale, 0)
                yield {
                    "corpus": f"rendered, {model}",
                    "noise": kind,
                    "pairs": len(image),
                    "scores": _mean([_ranked(found, wrong.to_numpy().astype(bool))]),
                    "at_half": at_half(str(table), shift=0.2),
                }


def _ranked(found: dict[str, Any], wrong: np.ndarray) -> dict[str, dict[str, float]]:
    return {
        name: {
            "auroc": float(roc_auc_score(wrong, -score)),
            "average_precision": float(average_precision_score(wrong, -score)),
        }
        for name, score in found.items()
        if score is not None
    }


def _mean(trials: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            figure: round(statistics.mean(trial[name][figure] for trial in trials), 5)
            for figure in trials[0][name]
        }
        for name in trials[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=16_000)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    rows = []
    for row in (*real(arguments.data, arguments.draws), *rendered(arguments.pairs)):
        rows.append(row)
        print(row, flush=True)
    if arguments.record is not None:
        settings = {"share": SHARE, "block": BLOCK, "pool": POOL, "pairs": arguments.pairs}
        write_record(
            arguments.record, make_record(rows, settings=settings, seeds=range(arguments.draws))
        )


if __name__ == "__main__":
    main()
