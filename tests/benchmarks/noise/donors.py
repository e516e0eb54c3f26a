"""Which score to calibrate on, where wrong captions come from outside of the corpus and where not.

    python tests/benchmarks noise.donors --data FOLDER [--draws 20] [--pairs 1000]
        [--kinds donor,permuted] [--record docs/records/donors.json]

FOLDER holds `.npz` files of embeddings of matched pairs, as `noise.real_clip` takes them;
`noise.weak_estimators` makes further ones. In each draw three fifths of the pairs, or `--pairs`,
are the corpus. A share of them gets another caption: one of the remaining
pairs, whose image is then not among the rivals of `neg_clip_loss` (`donor`), or one of the corpus
itself, whose image is (`permuted`). Near misses come beside them: two captions that are each
other's nearest change places (`nearest`), or captions of one of 20 clusters (`cluster`). `clean`
moves none.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from records import Row, benchmark
from sklearn.cluster import KMeans

from ncclean.base.config import CalibratedOn
from ncclean.scoring.calibration import fit_null
from ncclean.scoring.clip_loss import binned
from ncclean.scoring.columns import score_pairs
from ncclean.scoring.score_choice import better_score

SHARES = (0.05, 0.2, 0.4)
IN_CORPUS = 0.6
CLUSTERS = 20
KINDS = ("donor", "permuted", "nearest", "cluster", "clean")


def noisy(
    kind: str, text: np.ndarray, corpus: np.ndarray, rest: np.ndarray, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) captions of the pairs `corpus` with noise, and (n,) which are wrong."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    captions = text[corpus].copy()
    count = round(share * len(corpus))
    wrong = np.zeros(len(corpus), dtype=bool)
    if kind == "clean":
        return captions, wrong
    if kind == "donor":
        moved = rng.choice(len(corpus), count, replace=False)
        captions[moved] = text[rng.choice(rest, count, replace=count > len(rest))]
        wrong[moved] = True
    elif kind == "permuted":
        moved = rng.choice(len(corpus), count, replace=False)
        captions[moved] = text[corpus][np.roll(moved, 1)]
        wrong[moved] = True
    else:
        source = np.arange(len(corpus))
        group = np.zeros(len(corpus))
        if kind == "cluster":
            group = KMeans(CLUSTERS, n_init=1, random_state=seed).fit_predict(captions)
        cosines = captions @ captions.T
        for row in rng.permutation(len(corpus)):
            free = (group == group[row]) & ~wrong
            free[row] = False
            if wrong.sum() >= count or wrong[row] or not free.any():
                continue
            others = np.flatnonzero(free)
            other = (
                rng.choice(others) if kind == "cluster" else others[cosines[row, others].argmax()]
            )
            source[[row, other]] = other, row
            wrong[[row, other]] = True
        captions = captions[source]
    return captions, wrong


def judged(image: np.ndarray, captions: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """Pairs on the wrong side of one half by each score and by `auto`'s; `auto`'s noise rate."""
    found = score_pairs(
        torch.from_numpy(image), torch.from_numpy(captions),
        scale=100.0, shard="0", block_size=2048, forget_percent=10.0, seed=0,
    )  # fmt: skip
    errors, nulls = {}, {}
    for score in get_args(CalibratedOn):
        null = nulls[score] = fit_null(found.distributions, score)[1]
        values = torch.from_numpy(found.columns[score])
        kept = null.noise_probability(values if score == "similarity" else binned(values)) < 0.5
        errors[score] = int((kept.numpy() == wrong).sum())
    taken = better_score(found.distributions, nulls["similarity"], nulls["neg_clip_loss"])
    rate, share = nulls[taken].noise_rate, float(wrong.mean())
    return {
        "errors": {**errors, "auto": errors[taken]}, "share": share, "rate": rate.value,
        "width": rate.high - rate.low, "covered": rate.low <= share <= rate.high,
    }  # fmt: skip


def measure(file: Path, kind: str, share: float, draws: int, pairs: int | None) -> Row:
    """One corpus and one kind of noise, over draws."""
    arrays = np.load(file)
    image, text = (arrays[side].astype(np.float32) for side in ("image", "text"))
    results = []
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(len(image))
        corpus, rest = np.split(order, [pairs or round(IN_CORPUS * len(image))])
        captions, wrong = noisy(kind, text, corpus, rest, share, seed)
        results.append(judged(image[corpus], captions, wrong))
    means = {
        name: round(float(np.mean([result[name] for result in results])), 5)
        for name in ("share", "rate", "width")
    }
    errors = [result["rate"] - result["share"] for result in results]
    return {
        "corpus": file.stem, "pairs": len(corpus), "noise": kind, "draws": draws, **means,
        "rate_error": round(float(np.sqrt(np.mean(np.square(errors)))), 5),
        "covered": sum(bool(result["covered"]) for result in results),
        "wrong": {
            score: round(statistics.mean(result["errors"][score] for result in results), 3)
            for score in results[0]["errors"]
        },
    }  # fmt: skip


def donors(
    data: Path, draws: int = 20, pairs: int | None = None, kinds: str = ",".join(KINDS)
) -> Iterator[Row]:
    """A row for each set of embeddings, kind of noise and share."""
    for file in sorted(data.glob("*.npz")):
        for kind in kinds.split(","):
            for share in SHARES if kind != "clean" else (0.0,):
                yield measure(file, kind, share, draws, pairs)
    return {"seeds": list(range(draws))}


if __name__ == "__main__":
    benchmark(donors, shares=SHARES, in_corpus=IN_CORPUS, clusters=CLUSTERS, scale=100.0)
