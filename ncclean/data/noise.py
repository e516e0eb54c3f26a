"""Noise with known truth: which pairs of a corpus are spoilt, and how.

Kinds: `ncr` permutes the captions of a share of the pairs among themselves, `decl` permutes
their images, `per_batch` permutes captions within batches (the Bayesian paper), `hard` changes
one word of the caption, `junk` replaces it by boilerplate, `donor` by a caption of another corpus.
A pair that a permutation leaves in place is clean.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ncclean.errors import InputError

PERMUTING = ("ncr", "decl", "per_batch")
KINDS = (*PERMUTING, "hard", "junk", "donor")
PER_BATCH_SIZE = 128


@dataclass(frozen=True)
class NoisePlan:
    """For each of N pairs: where its image and caption come from, and its kind of noise.

    `image_source` and `caption_source` are (N,) int64 indices; a caption from N on is one of the
    donors', numbered from there. `code` is (N,) int8, 0 for clean,
    else the place in `KINDS`, from 1. `planned` counts the pairs drawn for each kind asked for,
    the ones that a permutation left in place included.
    """

    image_source: np.ndarray
    caption_source: np.ndarray
    code: np.ndarray
    planned: dict[str, int]

    @functools.cached_property
    def kind(self) -> np.ndarray:
        """(N,) names of the kinds, "" for clean."""
        return np.asarray(np.array(("", *KINDS))[self.code])

    @property
    def is_noisy(self) -> np.ndarray:
        """(N,) bool."""
        return np.asarray(self.code != 0)


def check_rates(rates: Mapping[str, float]) -> None:
    """Raise `InputError` for an unknown kind, a rate outside [0, 1] or a sum above 1."""
    unknown = set(rates) - set(KINDS)
    if unknown:
        raise InputError(
            f"unknown kind of noise {sorted(unknown)[0]!r}; use one of {', '.join(KINDS)}"
        )
    # Written so that NaN is refused as well.
    if not all(0 <= rate <= 1 for rate in rates.values()) or not sum(rates.values()) <= 1 + 1e-9:
        raise InputError("noise rates must lie in [0, 1] and sum to at most 1")


def parse_rates(
    kinds: Sequence[str], rates: Sequence[float], pairs: Sequence[str]
) -> dict[str, float]:
    """Rates by kind, from kinds with a rate each and from `ncr=0.2,hard=0.05`.

    Raises `InputError` for a kind without a rate, named twice, or a rate that is not a number.
    """
    if len(kinds) != len(rates):
        raise InputError(
            f"there are {len(kinds)} --kind and {len(rates)} --rate: give each kind its rate"
        )
    named = list(zip(kinds, rates, strict=True))
    for piece in ",".join(pairs).split(",") if pairs else ():
        kind, _, rate = piece.partition("=")
        try:
            named.append((kind.strip(), float(rate)))
        except ValueError:
            raise InputError(f"--noise takes kind=rate, as in ncr=0.2, got {piece!r}") from None
    rates_by_kind = dict(named)
    if len(rates_by_kind) < len(named):
        raise InputError("each kind of noise can be given only once")
    check_rates(rates_by_kind)
    return rates_by_kind


def noise_count(rate: float, pairs: int) -> int:
    """floor(rate N), where the rate may be a rounded decimal fraction."""
    return int(rate * pairs + 1e-9)


def plan_noise(
    pairs: int,
    rates: Mapping[str, float],
    seed: int,
    *,
    batch_size: int = PER_BATCH_SIZE,
    changeable: np.ndarray | None = None,
    stream: int = 0,
    donors: int = 0,
) -> NoisePlan:
    """Assign disjoint sets of floor(rate N) pairs to the kinds of noise.

    `per_batch` permutes within batches of `batch_size` consecutive pairs. `hard` takes pairs
    where `changeable` (N,) is true, and fewer than floor(rate N) if there are not enough. `donor`
    draws from as many captions as `donors` says, each once before any is drawn again. Plans of
    another `stream` are independent. Needs 17 bytes a pair. Raises `InputError` as `check_rates`
    does, and for `donor` without donors.
    """
    check_rates(rates)
    if rates.get("donor") and not donors:
        raise InputError("there is no caption to take for noise of the kind donor")
    rng = np.random.default_rng([seed, pairs, stream] if stream else [seed, pairs])
    image_source, caption_source = np.arange(pairs), np.arange(pairs)
    code = np.zeros(pairs, dtype=np.int8)
    planned: dict[str, int] = {}
    free = rng.permutation(pairs)
    for number, name in enumerate(KINDS, start=1):
        count = noise_count(rates.get(name, 0.0), pairs)
        if name == "hard" and changeable is not None:
            fit = np.flatnonzero(changeable[free])[:count]
            chosen, free = np.sort(free[fit]), np.delete(free, fit)
        else:
            chosen, free = np.sort(free[:count]), free[count:]
        if name in rates:
            planned[name] = len(chosen)
        code[chosen] = number
        if name == "decl":
            image_source[chosen] = rng.permutation(chosen)
        elif name == "ncr":
            caption_source[chosen] = rng.permutation(chosen)
        elif name == "per_batch":
            batches = np.split(chosen, np.flatnonzero(np.diff(chosen // batch_size)) + 1)
            caption_source[chosen] = np.concatenate([rng.permutation(b) for b in batches])
        elif name == "donor" and count:
            rounds = [rng.permutation(donors) for _ in range(-(-count // donors))]
            caption_source[chosen] = pairs + np.concatenate(rounds)[: len(chosen)]
    index = np.arange(pairs)
    stayed = (image_source == index) & (caption_source == index) & (code <= len(PERMUTING))
    code[stayed] = 0
    return NoisePlan(image_source, caption_source, code, planned)
