"""Intervals of the noise rate where a corpus has few distinct captions.

    python tests/benchmarks noise.few_captions [--draws 20] [--record few-captions.json]

Simulated embeddings: each of some captions is a direction, around which its images lie, and a fifth
of the pairs exchange captions. A caption counts once in a block for how well the known mismatches
are known, so that a corpus of many blocks counts it many times.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from corpora import unit
from records import Row, benchmark

from ncclean.scoring.calibration import fit_null
from ncclean.scoring.columns import score_pairs

SHARE = 0.2
DIMENSIONS = 64
SIZES = (2_000, 20_000)
CAPTIONS = (5, 25, 100)


def corpus(captions: int, pairs: int, seed: int) -> tuple[np.ndarray, ...]:
    """(n, d) images and captions, and (n,) numbers of these, as they are and as they should be."""
    rng = np.random.default_rng(seed)
    directions = unit(rng.normal(size=(captions, DIMENSIONS)))
    common = 0.5 * rng.normal(size=DIMENSIONS) / DIMENSIONS**0.5
    scatter = 0.5 * rng.normal(size=directions.shape) / DIMENSIONS**0.5
    texts = unit(0.7 * directions + scatter + common)
    right = rng.integers(captions, size=pairs)
    images = 0.6 * directions[right] + rng.normal(size=(pairs, DIMENSIONS)) / DIMENSIONS**0.5
    moved = rng.choice(pairs, round(SHARE * pairs), replace=False)
    numbers = right.copy()
    numbers[moved] = right[np.roll(moved, 1)]
    return unit(images), texts[numbers], numbers, right


def intervals(draws: int = 20) -> Iterator[Row]:
    """A row for each number of pairs and captions."""
    for pairs, captions in itertools.product(SIZES, CAPTIONS):
        covered, widths, errors = 0, [], []
        for seed in range(draws):
            image, text, numbers, right = corpus(captions, pairs, seed)
            distributions = score_pairs(
                torch.from_numpy(image).float(), torch.from_numpy(text).float(), scale=100.0,
                shard="0", block_size=2048, forget_percent=10.0, seed=0, captions=numbers,
            ).distributions  # fmt: skip
            rate = fit_null(distributions, "auto")[1].noise_rate
            share = float((numbers != right).mean())
            covered += rate.low <= share <= rate.high
            widths.append(rate.high - rate.low)
            errors.append(rate.value - share)
        yield {
            "captions": captions, "pairs": pairs, "draws": draws, "covered": int(covered),
            "width": round(float(np.mean(widths)), 5), "error": round(float(np.mean(errors)), 5),
        }  # fmt: skip
    return {"seeds": list(range(draws))}


if __name__ == "__main__":
    benchmark(intervals, share=SHARE, dimensions=DIMENSIONS, block=2048)
