"""Count partners that fit better than a pair's own, over the whole corpus.

If another pair's caption fits an image better than its own, contrastive training uses it as a
negative although it matches: a false negative. A mismatched pair has thousands. Near-duplicates of
a pair, by image or by text, are not counted: their captions describe the same image, or are the
same. Nor are ties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclean.neighbour_search.blocks import EmbeddedBlock
from ncclean.neighbour_search.corpus import SIDES, Corpus, Direction, Distinct
from ncclean.neighbour_search.inverted_lists import TIE, Nearest, nearest_of
from ncclean.neighbour_search.stages import Stages, chunks
from ncclean.storage.array_files import ArrayFolder, Arrays

_BLOCK_ROWS = 1024
_COLUMN_ROWS = 8192


def count_better(
    image: np.ndarray,
    text: np.ndarray,
    own: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(n,) int32 counts of other pairs whose caption fits the image better, and vice versa.

    Exact, in n^2 d operations. `image` and `text` are (n, d), `own` (n,) the cosines of the pairs,
    the groups (n,) any labels of near-duplicates.
    """
    captions, images = np.zeros(len(own), np.int32), np.zeros(len(own), np.int32)
    grouped = np.flatnonzero(_has_company(image_group) | _has_company(text_group))
    for here in chunks(len(own), _BLOCK_ROWS):
        rows = image[here].astype(np.float32)
        here_grouped = _within(grouped, here)
        for columns in chunks(len(own), _COLUMN_ROWS):
            cosines = rows @ text[columns].astype(np.float32).T
            captions[here] += (cosines > own[here, None] + TIE).sum(axis=1, dtype=np.int32)
            images[columns] += (cosines > own[None, columns] + TIE).sum(axis=0, dtype=np.int32)
            # Subtract the counts from near-duplicates, which few pairs have.
            i, j = here_grouped, _within(grouped, columns)
            same = image_group[i, None] == image_group[None, j]
            same |= text_group[i, None] == text_group[None, j]
            cosines = cosines[np.ix_(i - here.start, j - columns.start)]
            captions[i] -= (same & (cosines > own[i, None] + TIE)).sum(axis=1, dtype=np.int32)
            images[j] -= (same & (cosines > own[None, j] + TIE)).sum(axis=0, dtype=np.int32)
    return captions, images


def _has_company(group: np.ndarray) -> np.ndarray:
    """(n,) bool: another pair has the same label."""
    _, inverse, counts = np.unique(group, return_inverse=True, return_counts=True)
    company: np.ndarray = counts[inverse.reshape(-1)] > 1
    return company


def _within(rows: np.ndarray, block: slice) -> np.ndarray:
    """Return the part of the sorted (m,) row numbers that lies in `block`."""
    first, last = np.searchsorted(rows, (block.start, block.stop))
    return rows[first:last]


def count_better_among(
    pairs: np.ndarray,
    nearest: Nearest,
    own: np.ndarray,
    query_group: np.ndarray,
    candidate_group: np.ndarray,
    candidates: Distinct,
    sizes: np.ndarray,
    keys: np.ndarray,
) -> np.ndarray:
    """Return (p,) lower bounds on the better matches of pairs: those among the neighbours found.

    `nearest` has a row for each of the pairs and names distinct `candidates`. The groups (n,) are
    those of all pairs, in the queries' modality and in the candidates'. `sizes` (n,) is the number
    of pairs in the query's group, `keys` (h,) encode their candidates: u times group plus
    candidate, for all pairs in groups of more than one, ascending.
    """
    counts = np.empty(len(pairs), dtype=np.int32)
    for rows in chunks(len(pairs), _COLUMN_ROWS):
        here = pairs[rows]
        ids = nearest.ids[rows]
        better = (nearest.cosines[rows] > own[here, None] + TIE) & (ids >= 0)
        better &= candidate_group[candidates.first[ids]] != candidate_group[here, None]
        # Pairs of the query's own group that have the candidate are not better matches.
        wanted = query_group[here, None].astype(np.int64) * len(candidates) + ids
        held = np.searchsorted(keys, wanted, "right") - np.searchsorted(keys, wanted)
        is_own = ids == candidates.labels[here, None]
        same_group = np.where(sizes[here, None] > 1, held, is_own)
        copies = candidates.starts[ids + 1] - candidates.starts[ids]
        counts[rows] = (better * (copies - same_group)).sum(axis=1)
    return counts


def better_among_neighbours(
    stages: Stages, corpus: Corpus, groups: Arrays, direction: Direction, tasks: int
) -> np.ndarray:
    """(n,) better matches of each pair among its neighbours of one direction."""
    name, candidates = f"better-{direction.name}", corpus.distinct[direction.index]
    stages.select(
        f"candidates-{direction.name}",
        f"SELECT label + {len(candidates)} * first::BIGINT AS keys FROM numbered WHERE size > 1 "
        "ORDER BY keys",
        label=candidates.labels, first=groups[direction.query],
        size=groups[f"{direction.query}_size"],
    )  # fmt: skip
    files = stages.run("counting better matches", name, better_block, [(direction,)] * tasks)
    return stages.gather(name, files, {"counts": ((len(corpus),), np.int32)})["counts"]


def better_block(work: ArrayFolder, number: int, direction: Direction) -> None:
    """Count better matches of the pairs with the vectors of one task's search."""
    groups, asking = work.load("pair-groups"), Distinct.load(work, direction.query)
    queries, nearest = nearest_of(work, direction, number)
    pairs = asking.rows_of(queries)
    rows = np.searchsorted(queries, asking.labels[pairs])
    counts = count_better_among(
        pairs,
        Nearest(nearest.cosines[rows], nearest.ids[rows]),
        work.load("own")["own"],
        groups[direction.query],
        groups[direction.index],
        Distinct.load(work, direction.index),
        groups[f"{direction.query}_size"],
        work.load(f"candidates-{direction.name}")["keys"],
    )
    work.save(f"better-{direction.name}-{number}", {"rows": pairs, "counts": counts})


def better_of_all(
    stages: Stages, blocks: Sequence[EmbeddedBlock], corpus: Corpus, groups: Arrays
) -> tuple[np.ndarray, np.ndarray]:
    """Count better matches of every pair by comparing every image with every caption."""
    stages.progress.say("comparing images with captions")
    shape = (len(corpus), corpus.dim), np.float16
    with stages.work.scratch(dict.fromkeys(SIDES, shape)) as vectors:
        for start, block in zip(corpus.starts, blocks, strict=False):
            read = block.read()
            rows = slice(start, start + len(read.image))
            vectors["image"][rows], vectors["text"][rows] = read.image, read.text
        sides = vectors["image"], vectors["text"]
        return count_better(*sides, corpus.own, groups["image"], groups["text"])
