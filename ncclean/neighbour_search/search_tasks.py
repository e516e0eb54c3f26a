"""The k nearest of consecutive vectors in the order of lists: one task for some of them."""

from __future__ import annotations

import itertools

import numpy as np

from ncclean.neighbour_search.block_tasks import Direction
from ncclean.neighbour_search.inverted_lists import InvertedLists, Nearest
from ncclean.storage.array_files import ArrayFolder

# What a task holds of the vectors it searches with: so much of its memory. The rest is for lists.
_OF_QUERIES = 0.5
_SMALL, _MOST_SMALL = 20_000, 64  # rows that are worth a task, up to so many tasks


def task_rows(count: int, dim: int, k: int, nprobe: int, memory_bytes: int) -> list[slice]:
    """Cut `count` rows in the order of lists into tasks that fit into so much memory.

    The cut is not a matter of how many tasks run at a time: last digits of results depend on it.
    """
    # In float32 the vectors and those of them that visit a list; the lists, and what is found.
    of_a_row = 3 * 4 * dim + 20 * nprobe + 40 * (k + 1)
    tasks = max(
        -(-count * of_a_row // int(_OF_QUERIES * memory_bytes)),
        min(_MOST_SMALL, -(-count // _SMALL)),
    )
    bounds = (count * np.arange(tasks + 1) // tasks).tolist()
    return [slice(*ends) for ends in itertools.pairwise(bounds)]


def search_lists(
    work: ArrayFolder, number: int, direction: Direction, rows: slice, k: int, nprobe: int
) -> None:
    """Search the k nearest of some vectors of the query side; never the query itself."""
    index, queries = (InvertedLists(work, side) for side in (direction.index, direction.query))
    ids = queries.ids[rows]
    if direction.is_within:
        nearest = index.search(queries.read(rows), k + 1, nprobe).without(ids)
    else:
        nearest = index.search(queries.read(rows), k, nprobe)
    order = np.argsort(ids)
    columns = {"queries": ids, **nearest._asdict()}
    work.save(
        f"near-{direction.name}-{number}", {name: one[order] for name, one in columns.items()}
    )


def nearest_of(work: ArrayFolder, direction: Direction, number: int) -> tuple[np.ndarray, Nearest]:
    """The (q,) ascending ids of a task's queries, and the k nearest neighbours of each."""
    file = work.load(f"near-{direction.name}-{number}")
    return file["queries"], Nearest(file["cosines"], file["ids"])
