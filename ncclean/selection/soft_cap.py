"""Soft cap sampling: draw by score, each draw making the pair's next one less likely.

Shechter and Carmon 2025, "Filter Like You Test": pairs are drawn with probabilities softmax(score),
and each draw lowers the score of its pair by a penalty, so that the best are repeated and none too
often. They draw batches of 100,000 at a time; here each draw counts at once.

Sequential drawing is a race of independent clocks: the k-th draw of pair i follows its previous one
after an exponential time of rate exp(score_i - (k - 1) penalty), and the first `size` draws of all
clocks are the sample. So a pair's times depend on its uid alone, a sample of a larger corpus is
consistent with that of a smaller one, and it takes a few passes instead of one a draw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def soft_cap_draws(
    scores: np.ndarray, keys: np.ndarray, size: int, penalty: float = 0.15
) -> np.ndarray:
    """Return how often soft cap sampling draws each of n pairs; the counts (n,) add up to `size`.

    Takes (n,) float scores and (n,) uint64 random keys. A penalty of 0 is sampling with
    replacement. Raises `ValueError` for scores that are not finite, a negative penalty, or no pairs
    to draw from.
    """
    if not len(scores) or not np.isfinite(scores).all() or penalty < 0 or size < 0:
        raise ValueError("soft cap sampling needs pairs with finite scores, and a penalty >= 0")
    if not size:
        return np.zeros(len(scores), dtype=np.int64)
    relative = np.asarray(scores, dtype=np.float64) - np.max(scores)
    # Times are logarithms: the last draws' may exceed the range of a number.
    high = float(np.log(size) - np.log(np.exp(relative).sum()))
    low, step = high, 1.0
    counts = _counts(relative, keys, high, penalty)
    while counts.sum() < size:
        low, high, step = high, high + step, 2 * step
        counts = _counts(relative, keys, high, penalty)
    while _counts(relative, keys, low, penalty).sum() >= size:
        low, step = low - step, 2 * step
    while counts.sum() > size:
        middle = (low + high) / 2
        if middle in (low, high):  # draws at the same time: pairs with one name
            break
        of_middle = _counts(relative, keys, middle, penalty)
        if of_middle.sum() < size:
            low = middle
        else:
            high, counts = middle, of_middle
    last = np.flatnonzero(counts > _counts(relative, keys, low, penalty))
    counts[last[len(last) - (counts.sum() - size) :]] -= 1
    return counts


def draw_keys(names: Iterable[str], seed: int) -> np.ndarray:
    """Return (n,) uint64 random keys for pairs, which depend only on their names and the seed."""
    salt = seed.to_bytes(8, "little")
    digests = (hashlib.blake2b(name.encode(), digest_size=8, salt=salt) for name in names)
    return np.frombuffer(b"".join(digest.digest() for digest in digests), dtype="<u8")


def _counts(relative: np.ndarray, keys: np.ndarray, time: float, penalty: float) -> np.ndarray:
    """(n,) draws until a time, given as its logarithm."""
    counts = np.zeros(len(relative), dtype=np.int64)
    left = np.arange(len(relative))
    clock = np.full(len(relative), -np.inf)
    draw = 0
    while len(left):
        waited = np.log(_exponential(keys[left], draw)) - (relative[left] - draw * penalty)
        clock = np.logaddexp(clock, waited)
        drawn = clock <= time
        left, clock = left[drawn], clock[drawn]
        counts[left] += 1
        draw += 1
    return counts


def _exponential(keys: np.ndarray, draw: int) -> np.ndarray:
    """Return exponential numbers of rate 1 by key and draw: splitmix64, whose state is the key."""
    with np.errstate(over="ignore"):
        state = keys + _GOLDEN * np.uint64(draw + 1)
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        state = state ^ (state >> np.uint64(31))
    uniform = ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    exponential: np.ndarray = -np.log(uniform)
    return exponential
