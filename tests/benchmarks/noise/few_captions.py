"""Intervals of the noise rate where a corpus has few distinct captions.

    python tests/benchmarks noise.few_captions [--draws 20] [--record few-captions.json]

Simulated embeddings: each of some captions is a direction, around which its images lie, and a fifth
of the pairs exchange captions. A caption counts once in a block for how well the known mismatches
are known, so that a corpus of many blocks counts it many times; beside it stands the interval that
counts it once in the corpus.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from records import make_record, write_record

from ncclean.scoring.calibration import fit_null
from ncclean.scoring.columns import score_pairs
from ncclean.scoring.null import NullModel

SHARE = 0.2
DIMENSIONS = 64
SIZES = (2_000, 20_000)
CAPTIONS = (5, 25, 100)


def corpus(captions: int, pairs: int, seed: int) -> tuple[np.ndarray, ...]:
    """(n, d) images and captions, and (n,) numbers of these, as they are and as they should be."""
    rng = np.random.default_rng(seed)
    directions = _unit(rng.normal(size=(captions, DIMENSIONS)))
    common = 0.5 * rng.normal(size=DIMENSIONS) / DIMENSIONS**0.5
    scatter = 0.5 * rng.normal(size=directions.shape) / DIMENSIONS**0.5
    texts = _unit(0.7 * directions + scatter + common)
    right = rng.integers(captions, size=pairs)
    images = 0.6 * directions[right] + rng.normal(size=(pairs, DIMENSIONS)) / DIMENSIONS**0.5
    moved = rng.choice(pairs, round(SHARE * pairs), replace=False)
    numbers = right.copy()
    numbers[moved] = right[np.roll(moved, 1)]
    return _unit(images), texts[numbers], numbers, right


def _unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def measure(captions: int, pairs: int, draws: int) -> dict[str, Any]:
    covered, once, widths, errors = 0, 0, [], []
    for seed in range(draws):
        image, text, numbers, right = corpus(captions, pairs, seed)
        found = score_pairs(
            torch.from_numpy(image).float(), torch.from_numpy(text).float(), scale=100.0,
            shard="0", block_size=2048, forget_percent=10.0, seed=0, captions=numbers,
        ).distributions  # fmt: skip
        score, null = fit_null(found, "auto")
        assert null is not None
        share = float((numbers != right).mean())
        covered += null.noise_rate.low <= share <= null.noise_rate.high
        widths.append(null.noise_rate.high - null.noise_rate.low)
        errors.append(null.noise_rate.value - share)
        scores = found.score(score)
        means = scores.caption_means.counts * (captions / scores.caption_means.size)
        other = NullModel.fit(scores.matched, scores.mismatched, (scores.image_means, means))
        once += other.noise_rate.low <= share <= other.noise_rate.high
    return {
        "captions": captions,
        "pairs": pairs,
        "draws": draws,
        "covered": int(covered),
        "covered_counted_once": int(once),
        "width": round(float(np.mean(widths)), 5),
        "error": round(float(np.mean(errors)), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    rows = []
    for pairs in SIZES:
        for captions in CAPTIONS:
            rows.append(measure(captions, pairs, arguments.draws))
            print(rows[-1], flush=True)
    if arguments.record is not None:
        settings = {"share": SHARE, "dimensions": DIMENSIONS, "block": 2048}
        write_record(
            arguments.record, make_record(rows, settings=settings, seeds=range(arguments.draws))
        )


if __name__ == "__main__":
    main()
