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
    """Count better captions for each image, and better images for each caption: (n,) int32 each.

    A better match is another pair's, with a higher cosine than the pair's own and in another group
    of near-duplicates. Exact, in n^2 d operations. `image` and `text` are (n, d), `own` (n,) the
    cosines of the pairs; the groups (n,) are any labels.
    """
    captions, images = np.zeros(len(own), np.int32), np.zeros(len(own), np.int32)
    grouped = np.flatnonzero(_has_company(image_group) | _has_company(text_group))
    for image_rows in chunks(len(own), _BLOCK_ROWS):
        rows = image[image_rows].astype(np.float32)
        here_grouped = _within(grouped, image_rows)
        for columns in chunks(len(own), _COLUMN_ROWS):
            cosines = rows @ text[columns].astype(np.float32).T
            captions[image_rows] += (cosines > own[image_rows, None] + TIE).sum(
                axis=1, dtype=np.int32
            )
            images[columns] += (cosines > own[None, columns] + TIE).sum(axis=0, dtype=np.int32)
            # Subtract the counts from near-duplicates, which few pairs have.
            i, j = here_grouped, _within(grouped, columns)
            same = image_group[i, None] == image_group[None, j]
            same |= text_group[i, None] == text_group[None, j]
            cosines = cosines[np.ix_(i - image_rows.start, j - columns.start)]
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
    """Count better matches of p pairs among the neighbours found: (p,) int32 lower bounds.

    `nearest` has a row of neighbours for each of the `pairs`, by number of the distinct
    `candidates`. `own` (n,) are the cosines of all pairs, and the groups (n,) their groups of
    near-duplicates in the modality of the queries and of the candidates. `sizes` (n,) is the number
    of pairs in the query's group. `keys` (h,) are group * u + candidate, ascending, of all pairs in
    groups of more than one, for u candidates.
    """
    counts = np.empty(len(pairs), dtype=np.int32)
    for rows in chunks(len(pairs), _COLUMN_ROWS):
        query_pairs = pairs[rows]
        ids = nearest.ids[rows]
        better = (nearest.cosines[rows] > own[query_pairs, None] + TIE) & (ids >= 0)
        better &= candidate_group[candidates.first[ids]] != candidate_group[query_pairs, None]
        # Pairs of the query's own group that have the candidate are not better matches.
        wanted = query_group[query_pairs, None].astype(np.int64) * len(candidates) + ids
        held = np.searchsorted(keys, wanted, "right") - np.searchsorted(keys, wanted)
        is_own = ids == candidates.labels[query_pairs, None]
        same_group = np.where(sizes[query_pairs, None] > 1, held, is_own)
        copies = candidates.starts[ids + 1] - candidates.starts[ids]
        counts[rows] = (better * (copies - same_group)).sum(axis=1)
    return counts


def better_among_neighbours(
    stages: Stages, corpus: Corpus, groups: Arrays, direction: Direction, tasks: int
) -> np.ndarray:
    """Count each pair's better matches among its neighbours in one direction; return (n,)."""
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
    """Count the better matches of the pairs searched by one task, and write them to a file."""
    groups, distinct = work.load("pair-groups"), Distinct.load(work, direction.query)
    queries, nearest = nearest_of(work, direction, number)
    pairs = distinct.rows_of(queries)
    rows = np.searchsorted(queries, distinct.labels[pairs])
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
    """Count every pair's better captions and better images, comparing all images with all captions.

    Returns two arrays (n,).
    """
    stages.progress.say("comparing images with captions")
    shape = (len(corpus), corpus.dim), np.float16
    with stages.work.scratch(dict.fromkeys(SIDES, shape)) as vectors:
        for start, block in zip(corpus.starts, blocks, strict=False):
            read = block.read()
            rows = slice(start, start + len(read.image))
            vectors["image"][rows], vectors["text"][rows] = read.image, read.text
        sides = vectors["image"], vectors["text"]
        return count_better(*sides, corpus.own, groups["image"], groups["text"])
