"""Near-duplicate groups of a side, joined over all lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ncclean.neighbours.chunked import (
    DisjointSets,
    add_counts,
    chunks,
)
from ncclean.neighbours.column_tasks import same_images
from ncclean.neighbours.corpus import Corpus
from ncclean.neighbours.duplicate_groups import Candidates, Leaders, join_single_rows
from ncclean.neighbours.duplicate_tasks import find_pairs
from ncclean.neighbours.result import SAME_IMAGE_COSINE
from ncclean.neighbours.stages import Stages

_ROWS = 1 << 15  # whose pairs are held at a time


def group_side(
    stages: Stages,
    corpus: Corpus,
    side: str,
    name: str,
    threshold: float,
    linkage: str,
    effort: int,
) -> None:
    """Write to a file of that name the representative of each distinct row's near-duplicates.

    `effort` is how many lists a row visits to find them.
    """
    if stages.has(name):
        return
    count = len(corpus.distinct[side])
    groups = len(stages.work.load("groups")[side]) - 1

    def compare(number: int) -> Iterator[tuple[slice, Candidates, np.ndarray]]:
        arguments = [(side, threshold, number, linkage, effort)] * groups
        text = f"comparing {side} near-duplicates"
        return _pairs(
            stages, stages.run(text, f"pairs-{side}-{number}", find_pairs, arguments), count
        )

    def ask(number: int, by_similarity: bool) -> None:
        stages.save(
            f"round-{side}-{number}",
            queries=leaders.queries, members=leaders.members, by_similarity=[by_similarity],
        )  # fmt: skip

    with stages.work.scratch(Leaders.shapes(count)) as arrays:
        leaders = Leaders(arrays)
        if linkage == "components":
            sets = DisjointSets(leaders.representative)
            for _, pairs, _ in compare(0):
                sets.join(pairs.queries, pairs.ids)
            sets.finish()
        else:
            number = 0
            while not number or leaders.search():
                if number:
                    ask(number, by_similarity=False)
                for round_ in compare(number):
                    leaders.decide(*round_)
                number += 1
            if leaders.search_nearest():
                ask(number, by_similarity=True)
                for _, pairs, _ in compare(number):
                    leaders.move(pairs)
        stages.save(name, representative=leaders.representative)


def join_single_images(stages: Stages, before: str, name: str) -> None:
    """Write the representatives of a file, where images that are alone join one like them."""
    if stages.has(name):
        return
    groups = len(stages.work.load("groups")["image"]) - 1
    arguments = [(SAME_IMAGE_COSINE,)] * groups
    names = stages.run("comparing images as they are", "same", same_images, arguments)
    files = [stages.work.load(one) for one in names]
    representative = stages.work.load(before)["representative"]
    count = len(representative)
    shape = (count,), np.int32
    with stages.work.scratch({"representative": shape, "sizes": shape}) as arrays:
        arrays["representative"][:] = representative
        add_counts(arrays["sizes"], representative)
        for rows in chunks(count, _ROWS):
            here = [_of_rows(file, "later", rows) for file in files]
            later, earlier = (
                np.concatenate([file[column][one] for file, one in zip(files, here, strict=True)])
                for column in ("later", "earlier")
            )
            order = np.argsort(later, kind="stable")
            queries, starts = np.unique(later[order], return_index=True)
            near = np.split(earlier[order], starts)[1:]
            join_single_rows(arrays["representative"], arrays["sizes"], queries, near)
        stages.save(name, representative=arrays["representative"])


def _pairs(
    stages: Stages, names: Sequence[str], count: int
) -> Iterator[tuple[slice, Candidates, np.ndarray]]:
    """For consecutive rows their pairs in all lists, by later row, and the rows of cut pairs."""
    files = [stages.work.load(name) for name in names]
    for rows in chunks(count, _ROWS):
        here = [_of_rows(file, "later", rows) for file in files]
        pairs = Candidates.joined([
            Candidates(file["later"][one], file["earlier"][one], file["cosines"][one])
            for file, one in zip(files, here, strict=True)
        ])  # fmt: skip
        cut = np.concatenate([file["cut"][_of_rows(file, "cut", rows)] for file in files])
        order = np.lexsort((-pairs.cosines, pairs.queries))
        yield rows, pairs.at(order), np.unique(cut)


def _of_rows(file: Mapping[str, np.ndarray], column: str, rows: slice) -> slice:
    """Where an ascending column has these rows."""
    # Values of another type would make a copy of the whole column.
    ends = np.array([rows.start, rows.stop], file[column].dtype)
    return slice(*np.searchsorted(file[column], ends).tolist())
