"""Noise with known truth: which pairs of a corpus are spoilt, and how.

Kinds: `ncr` permutes the captions of a share of the pairs among themselves, `decl` permutes
their images, `per_batch` permutes captions within batches (the Bayesian paper), `hard` changes
one word of the caption, `junk` replaces it by boilerplate. A pair that a permutation leaves in
place is clean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ncclean.errors import InputError

PERMUTING = ("ncr", "decl", "per_batch")
KINDS = (*PERMUTING, "hard", "junk")
PER_BATCH_SIZE = 128


@dataclass(frozen=True)
class NoisePlan:
    """For each of N pairs: where its image and caption come from, and its kind of noise.

    `image_source` and `caption_source` are (N,) int64 indices; `kind` is (N,) with "" for clean.
    """

    image_source: np.ndarray
    caption_source: np.ndarray
    kind: np.ndarray

    @property
    def is_noisy(self) -> np.ndarray:
        """(N,) bool."""
        return np.asarray(self.kind != "")


def plan_noise(pairs: int, rates: Mapping[str, float], seed: int) -> NoisePlan:
    """Assign disjoint sets of floor(rate N) pairs to the kinds of noise.

    Raises `InputError` for an unknown kind, a rate outside [0, 1] or rates that sum to more
    than 1.
    """
    unknown = set(rates) - set(KINDS)
    if unknown:
        raise InputError(f"unknown kind of noise {sorted(unknown)[0]!r}; use one of {KINDS}")
    if any(not 0 <= rate <= 1 for rate in rates.values()) or sum(rates.values()) > 1 + 1e-9:
        raise InputError("noise rates must lie in [0, 1] and sum to at most 1")
    rng = np.random.default_rng([seed, pairs])
    image_source, caption_source = np.arange(pairs), np.arange(pairs)
    kind = np.full(pairs, "", dtype="<U9")
    free = rng.permutation(pairs)
    for name in KINDS:
        count = int(rates.get(name, 0.0) * pairs + 1e-9)
        chosen, free = np.sort(free[:count]), free[count:]
        kind[chosen] = name
        if name == "decl":
            image_source[chosen] = rng.permutation(chosen)
        elif name == "ncr":
            caption_source[chosen] = rng.permutation(chosen)
        elif name == "per_batch":
            batches = np.split(chosen, np.flatnonzero(np.diff(chosen // PER_BATCH_SIZE)) + 1)
            caption_source[chosen] = np.concatenate([rng.permutation(b) for b in batches])
    index = np.arange(pairs)
    stayed = (image_source == index) & (caption_source == index) & np.isin(kind, PERMUTING)
    kind[stayed] = ""
    return NoisePlan(image_source, caption_source, kind)
