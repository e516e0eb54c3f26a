"""From neighbours to columns: LEMoN's terms, rivals and the nearest of a reference."""

from __future__ import annotations

import numpy as np

from ncclean.neighbours.better_matches import Held, count_better_among
from ncclean.neighbours.block_tasks import Direction, distinct_vectors
from ncclean.neighbours.blocks import Block
from ncclean.neighbours.chunked import chunks
from ncclean.neighbours.copies import Distinct
from ncclean.neighbours.embedding_rows import Rows
from ncclean.neighbours.inverted_lists import Vectors
from ncclean.neighbours.knn import Nearest
from ncclean.neighbours.lemon import LemonParameters, disagreement
from ncclean.neighbours.reference import REFERENCE_ROWS, NearestReference
from ncclean.neighbours.search_tasks import by_list, nearest_of
from ncclean.neighbours.whitening import Whitening
from ncclean.storage.array_files import ArrayFolder


class PairRows(Rows):
    """The vectors of pairs in one modality."""

    def __init__(self, vectors: Vectors, labels: np.ndarray) -> None:
        self._vectors, self._labels = vectors, labels
        self.dim = vectors.dim

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self._vectors.take(self._labels[rows])


def classes_of(work: ArrayFolder, side: str) -> Distinct:
    """The distinct rows of a side."""
    return Distinct.of(work.load(f"classes-{side}"))


def pairs_of_rows(distinct: Distinct, rows: np.ndarray) -> np.ndarray:
    """All pairs that have one of the distinct rows, row by row."""
    begins, ends = distinct.starts[rows], distinct.starts[rows + 1]
    sizes = ends - begins
    offsets = np.repeat(begins - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    pairs: np.ndarray = distinct.members[np.arange(int(sizes.sum())) + offsets]
    return pairs


def same_images(work: ArrayFolder, group: int, threshold: float) -> None:
    """Images of a group of lists that reach `threshold` in the model's own space."""
    queries, nearest = nearest_of(work, Direction("image", "image"), group)
    edge = (nearest.cosines >= threshold) & (nearest.ids >= 0)
    edge &= nearest.ids < queries[:, None]
    rows, places = np.nonzero(edge)
    work.save(f"same-{group}", {"later": queries[rows], "earlier": nearest.ids[rows, places]})


def agree_block(work: ArrayFolder, group: int, side: str, k: int) -> None:
    """LEMoN's term of one modality for the pairs whose vectors are in a group of lists."""
    other = "text" if side == "image" else "image"
    shared = work.load("pair-groups")
    distinct = classes_of(work, side)
    direction = Direction(side, side)
    queries, nearest = nearest_of(work, direction, group)
    # List by list, so that pairs that follow one another have neighbours in common.
    pairs = pairs_of_rows(distinct, queries[by_list(work, direction, group)])
    copies = [shared[name] for name in ("pair", "same_image") if name in shared]
    theirs = PairRows(Vectors(work, other), classes_of(work, other).labels)
    terms = disagreement(
        pairs, queries, nearest, distinct, theirs, work.load("own")["own"], copies, k,
        LemonParameters(k=k),
    )  # fmt: skip
    work.save(f"agree-{side}-{group}", {"pairs": pairs, "terms": terms})


def rivals_block(work: ArrayFolder, group: int, direction: Direction) -> None:
    """Rivals of the pairs whose nearest list of the other modality is in a group."""
    shared, candidates = work.load("pair-groups"), classes_of(work, direction.index)
    keys = work.load(f"held-{direction.name}")["keys"]
    queries, nearest = nearest_of(work, direction, group)
    asking = classes_of(work, direction.query)
    pairs = pairs_of_rows(asking, queries)
    rows = np.searchsorted(queries, asking.labels[pairs])
    counts = count_better_among(
        pairs,
        Nearest(nearest.cosines[rows], nearest.ids[rows]),
        work.load("own")["own"],
        shared[direction.query],
        shared[direction.index],
        Held(keys, work.load("sizes")[direction.query], candidates),
    )
    work.save(f"rivals-{direction.name}-{group}", {"pairs": pairs, "counts": counts})


def reference_block(work: ArrayFolder, number: int, block: Block, whiten: bool) -> None:
    """The nearest of the reference for each distinct image of a block; whitened cosines too."""
    vectors = distinct_vectors(work, number, block)["image"]
    reference = work.load("reference")["image"]
    space = Whitening.of(work.load("learnt"), "image_space_")
    matches: dict[str, list[np.ndarray]] = {"similarity": [], "nearest": [], "compared": []}
    for rows in chunks(len(vectors)):
        queries = vectors[rows].astype(np.float32)
        plain = NearestReference(queries)
        whitened = NearestReference(space.apply(queries)) if whiten else plain
        for piece in chunks(len(reference), REFERENCE_ROWS):
            values = reference[piece].astype(np.float32)
            plain.add(piece.start, values)
            if whiten:
                whitened.add(piece.start, space.apply(values))
        matches["similarity"].append(plain.cosines)
        matches["nearest"].append(plain.rows)
        matches["compared"].append(whitened.cosines)
    empty = np.empty(0, np.float32)
    work.save(
        f"reference-{number}",
        {name: np.concatenate([empty.astype(several[0].dtype) if several else empty, *several])
         for name, several in matches.items()},
    )  # fmt: skip
