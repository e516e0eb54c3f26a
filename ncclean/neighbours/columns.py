"""Columns of all pairs, gathered from the files of their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ncclean.neighbours.better_matches import Held, Rivals, count_rivals
from ncclean.neighbours.block_tasks import SIDES, Direction
from ncclean.neighbours.blocks import Block
from ncclean.neighbours.column_tasks import agree_block, reference_block, rivals_block
from ncclean.neighbours.corpus import Corpus
from ncclean.neighbours.duplicate_tasks import similarity_block
from ncclean.neighbours.embedding_rows import EmbeddingMatrix
from ncclean.neighbours.lemon import LemonParameters, lemon_score
from ncclean.neighbours.options import NeighbourOptions
from ncclean.neighbours.reference import CONTAMINATED, ReferenceMatches
from ncclean.neighbours.stages import Stages


def lemon_scores(stages: Stages, corpus: Corpus, k: int) -> np.ndarray:
    """(n,) LEMoN's scores."""
    parameters = LemonParameters(k=k)
    terms = []
    for side in SIDES:
        groups = len(stages.work.load("groups")[side]) - 1
        text = f"comparing with {side} neighbours"
        names = stages.run(text, f"agree-{side}", agree_block, [(side, k)] * groups)
        terms.append(_scattered(stages, names, "terms", len(corpus.own), np.float32))
    return lemon_score(corpus.own, terms[0], terms[1], parameters)


def nearby_rivals(
    stages: Stages, corpus: Corpus, direction: Direction, group: Mapping[str, np.ndarray]
) -> np.ndarray:
    """(n,) rivals among the neighbours found in one direction; `group` (n,) by side."""
    held = Held.of(group[direction.query], corpus.distinct[direction.index].labels)
    stages.save(f"held-{direction.name}", keys=held.keys, times=held.times, width=[held.width])
    groups = len(stages.work.load("groups")[direction.index]) - 1
    names = stages.run(
        "counting rivals", f"rivals-{direction.name}", rivals_block, [(direction,)] * groups
    )
    return _scattered(stages, names, "counts", len(corpus.own), np.int32)


def all_rivals(
    stages: Stages, blocks: Sequence[Block], corpus: Corpus, group: Mapping[str, np.ndarray]
) -> Rivals:
    """All rivals, by comparing every image with every caption in this process."""
    stages.progress.say("comparing images with captions")
    read = [block.read() for block in blocks]
    images = EmbeddingMatrix([one.image for one in read])
    texts = EmbeddingMatrix([one.text for one in read])
    return count_rivals(images, texts, corpus.own, group["image"], group["text"])


def similarities(stages: Stages, corpus: Corpus) -> dict[str, np.ndarray]:
    """By side, (n,) cosines with the representative of the group, whitened if the search is."""
    blocks = len(stages.work.load("bounds")["image"]) - 1
    names = stages.run("comparing groups", "similarity", similarity_block, [()] * blocks)
    files = [stages.work.load(name) for name in names]
    return {
        side: np.concatenate([file[side] for file in files])[corpus.distinct[side].labels]
        for side in SIDES
    }


def reference_matches(
    stages: Stages,
    blocks: Sequence[Block],
    corpus: Corpus,
    reference: np.ndarray | None,
    whiten: bool,
    options: NeighbourOptions,
) -> ReferenceMatches | None:
    """What is nearest in the reference; None without one."""
    if reference is None:
        return None
    stages.save("reference", image=reference)
    text = "comparing with the reference"
    arguments = [(block, whiten) for block in blocks]
    names = stages.run(text, "reference", reference_block, arguments)
    files = [stages.work.load(name) for name in names]
    joined = {
        name: np.concatenate([file[name] for file in files])[corpus.distinct["image"].labels]
        for name in ("similarity", "nearest", "compared")
    }
    limit = options.contamination_threshold
    limit = CONTAMINATED[whiten] if limit is None else limit
    return ReferenceMatches(
        joined["similarity"], joined["nearest"], joined["compared"] >= limit, limit
    )


def _scattered(
    stages: Stages, names: Sequence[str], column: str, count: int, kind: Any
) -> np.ndarray:
    """(n,) values of all pairs from files that have those of some each."""
    values: np.ndarray = np.zeros(count, kind)
    for file in map(stages.work.load, names):
        values[file["pairs"]] = file[column]
    return values
