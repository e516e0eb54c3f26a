"""Near-duplicate groups of a side, joined over all lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclean.neighbours.column_tasks import same_images
from ncclean.neighbours.corpus import Corpus
from ncclean.neighbours.duplicate_groups import Candidates, Grouping, components, join_single_rows
from ncclean.neighbours.duplicate_tasks import find_pairs
from ncclean.neighbours.result import SAME_IMAGE_COSINE
from ncclean.neighbours.stages import Stages


def group_side(
    stages: Stages, corpus: Corpus, side: str, threshold: float, linkage: str, effort: int
) -> np.ndarray:
    """(u,) the representative of each distinct row's group of near-duplicates.

    `effort` is how many lists a row visits to find them.
    """
    count = len(corpus.distinct[side])
    groups = len(stages.work.load("groups")[side]) - 1

    def compare(number: int) -> tuple[Candidates, np.ndarray]:
        arguments = [(side, threshold, number, linkage, effort)] * groups
        text = f"comparing {side} near-duplicates"
        names = stages.run(text, f"pairs-{side}-{number}", find_pairs, arguments)
        return _pairs(stages, names)

    pairs, cut = compare(0)
    if linkage == "components":
        return components(count, pairs.queries, pairs.ids).astype(np.int32)
    grouping = Grouping(count)
    grouping.decide(pairs, cut)
    number = 1
    while (rows := grouping.search()) is not None:
        stages.save(_round(side, number), queries=rows[0], members=rows[1], by_similarity=[False])
        grouping.decide(*compare(number))
        number += 1
    if (rows := grouping.search_nearest()) is not None:
        stages.save(_round(side, number), queries=rows[0], members=rows[1], by_similarity=[True])
        grouping.move(compare(number)[0])
    return grouping.representative


def join_single_images(stages: Stages, representative: np.ndarray) -> np.ndarray:
    """(u,) representatives, where images that are alone have joined one that is like them."""
    groups = len(stages.work.load("groups")["image"]) - 1
    arguments = [(SAME_IMAGE_COSINE,)] * groups
    names = stages.run("comparing images as they are", "same", same_images, arguments)
    files = [stages.work.load(name) for name in names]
    later = np.concatenate([file["later"] for file in files])
    earlier = np.concatenate([file["earlier"] for file in files])
    order = np.argsort(later, kind="stable")
    queries, starts = np.unique(later[order], return_index=True)
    return join_single_rows(representative, queries, np.split(earlier[order], starts)[1:])


def _round(side: str, number: int) -> str:
    return f"round-{side}-{number}"


def _pairs(stages: Stages, names: Sequence[str]) -> tuple[Candidates, np.ndarray]:
    """The pairs of all groups of lists by later row, and the rows whose pairs were cut."""
    files = [stages.work.load(name) for name in names]
    candidates = Candidates.joined(
        [Candidates(file["later"], file["earlier"], file["cosines"]) for file in files]
    )
    order = np.lexsort((-candidates.cosines, candidates.queries))
    return candidates.at(order), np.unique(np.concatenate([file["cut"] for file in files]))
