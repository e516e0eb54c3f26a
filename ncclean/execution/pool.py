"""Draws the pool of a corpus of embeddings and keeps it with the run: `ncclean.scoring.pool`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from upath import UPath

from ncclean.data.embeddings.pairs import EmbeddedPairs, read_pairs
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError
from ncclean.scoring.pool import Pool, sample_numbers
from ncclean.storage.array_files import ArrayFolder

_NAME = "pool"


def ensure_pool(
    work: UPath,
    shards: Sequence[ShardRef],
    keys: tuple[str, str] | None,
    dim: int,
    size: int,
    on_progress: Callable[[int], None] = lambda shards: None,
) -> None:
    """Draw the pool unless the run has one.

    It has the `size` pairs whose sample has the smallest hash, captions of one image in their
    order: the same for every order of the shards, and for one process as for many. A run that
    grows keeps its pool. Raises `InputError` if no pair can be read.
    """
    folder = ArrayFolder(str(work))
    if folder.has(_NAME):
        return
    best: dict[str, np.ndarray] = {}
    for done, shard in enumerate(shards):
        try:
            pairs = read_pairs(shard, keys, dim=dim)
        except ShardError:
            continue  # it is named when it is its turn to be scored
        if pairs.ok.any():
            best = _smallest(best, _drawn(pairs, size), size)
        on_progress(done + 1)
    if not best:
        raise InputError("no pair of the corpus can be read, so there is no pool for --pool")
    folder.save(_NAME, best)


def remove_pool(work: UPath) -> None:
    """Of a run that begins anew."""
    folder = ArrayFolder(str(work))
    folder.forget()
    if folder.has(_NAME):
        folder.remove([_NAME])


def load_pool(work: str) -> Pool:
    """The pool of a run. Raises `InputError` if it cannot be read."""
    arrays = ArrayFolder(work).load(_NAME)
    image, text = (torch.from_numpy(arrays[side].astype(np.float32)) for side in ("image", "text"))
    return Pool(image, text, arrays["samples"])


def _drawn(pairs: EmbeddedPairs, size: int) -> dict[str, np.ndarray]:
    """The pairs of a shard that may be in the pool."""
    ok = pairs.ok.nonzero()[0]
    numbers = sample_numbers(pairs.facts.column("uid").take(ok).to_pylist())
    captions = np.asarray(pairs.facts.column("caption_number"))[ok].astype(np.uint64)
    kept = np.lexsort((captions, numbers))[:size]
    return {
        "samples": numbers[kept],
        "captions": captions[kept],
        "image": pairs.image[kept].astype(np.float16),
        "text": pairs.text[kept].astype(np.float16),
    }


def _smallest(
    mine: dict[str, np.ndarray], others: dict[str, np.ndarray], size: int
) -> dict[str, np.ndarray]:
    if not mine:
        return others
    both = {name: np.concatenate([mine[name], others[name]]) for name in mine}
    kept = np.lexsort((both["captions"], both["samples"]))[:size]
    return {name: array[kept] for name, array in both.items()}
