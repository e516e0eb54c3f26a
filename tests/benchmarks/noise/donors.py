"""Which score to calibrate on, where wrong captions come from outside of the corpus and where not.

    python tests/benchmarks noise.donors --data FOLDER [--draws 20] [--pairs 1000]
        [--kinds donor,permuted] [--record docs/records/donors.json]

FOLDER holds `.npz` files of embeddings of matched pairs, as `real_clip.py` takes them;
`weak_estimators.py` makes further ones. In each draw three fifths of the pairs, or `--pairs`, are
the corpus. A share of them gets another caption: one of the remaining
pairs, whose image is then not among the rivals of `neg_clip_loss` (`donor`), or one of the corpus
itself, whose image is (`permuted`). Near misses come beside them: two captions that are each
other's nearest change places (`nearest`), or captions of one of 20 clusters (`cluster`). `clean`
moves none.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from records import make_record, write_record

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
        group = _clusters(captions, seed) if kind == "cluster" else np.zeros(len(corpus))
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


def _clusters(captions: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    return np.asarray(KMeans(CLUSTERS, n_init=1, random_state=seed).fit_predict(captions))


def judged(image: np.ndarray, captions: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """Pairs on the wrong side of one half by each score, what `auto` takes, and its noise rate."""
    found = score_pairs(
        torch.from_numpy(image), torch.from_numpy(captions),
        scale=100.0, shard="0", block_size=2048, forget_percent=10.0, seed=0,
    )  # fmt: skip
    errors, nulls = {}, {}
    for score in get_args(CalibratedOn):
        null = nulls[score] = fit_null(found.distributions, score)[1]
        assert null is not None
        values = torch.from_numpy(found.columns[score])
        kept = null.noise_probability(values if score == "similarity" else binned(values)) < 0.5
        errors[score] = int((kept.numpy() == wrong).sum())
    taken = better_score(found.distributions, nulls["similarity"], nulls["neg_clip_loss"])
    null = nulls[taken]
    is_covered = null.noise_rate.low <= wrong.mean() <= null.noise_rate.high
    return {
        "errors": errors, "taken": taken, "rate": null.noise_rate.value,
        "width": null.noise_rate.high - null.noise_rate.low, "covered": bool(is_covered),
    }  # fmt: skip


def measure(
    file: Path, kind: str, share: float, draws: int, pairs: int | None = None
) -> dict[str, Any]:
    """One corpus and one kind of noise, over draws."""
    arrays = np.load(file)
    image, text = (arrays[side].astype(np.float32) for side in ("image", "text"))
    results, moved = [], []
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(len(image))
        corpus, rest = np.split(order, [pairs or round(IN_CORPUS * len(image))])
        captions, wrong = noisy(kind, text, corpus, rest, share, seed)
        results.append(judged(image[corpus], captions, wrong))
        moved.append(float(wrong.mean()))
    by_score = {
        score: [result["errors"][score] for result in results] for score in get_args(CalibratedOn)
    }
    by_score["auto"] = [result["errors"][result["taken"]] for result in results]
    differences = np.subtract(by_score["neg_clip_loss"], by_score["similarity"])
    return {
        "corpus": file.stem,
        "pairs": len(corpus),
        "noise": kind,
        "share": statistics.mean(moved),
        "draws": draws,
        "wrong": {score: round(statistics.mean(values), 3) for score, values in by_score.items()},
        "difference": round(float(differences.mean()), 3),
        "difference_error": round(float(differences.std(ddof=1) / draws**0.5), 3),
        "takes_neg_clip_loss": sum(result["taken"] == "neg_clip_loss" for result in results),
        "rate": round(statistics.mean(result["rate"] for result in results), 5),
        "rate_error": round(
            float(
                np.sqrt(
                    np.mean([(r["rate"] - s) ** 2 for r, s in zip(results, moved, strict=True)])
                )
            ),
            5,
        ),
        "width": round(statistics.mean(result["width"] for result in results), 5),
        "covered": sum(result["covered"] for result in results),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--pairs", type=int, action="append", help="size of the corpus; repeatable")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    rows = []
    for file in sorted(arguments.data.glob("*.npz")):
        for pairs in arguments.pairs or [None]:
            for kind in arguments.kinds.split(","):
                for share in SHARES if kind != "clean" else (0.0,):
                    rows.append(measure(file, kind, share, arguments.draws, pairs))
                    print(rows[-1], flush=True)
    if arguments.record is not None:
        settings = {"shares": SHARES, "in_corpus": IN_CORPUS, "clusters": CLUSTERS, "scale": 100.0}
        write_record(
            arguments.record, make_record(rows, settings=settings, seeds=range(arguments.draws))
        )


if __name__ == "__main__":
    main()
