"""The k nearest by list: one task for each group of consecutive lists.

`search_first_list` compares queries with the list nearest to them, `search_other_lists` with the
others they probe, `merge_heaps` merges both for the queries whose first list is in the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ncclean.neighbour_search.block_tasks import Direction, starts_of
from ncclean.neighbour_search.chunked import chunks
from ncclean.neighbour_search.inverted_lists import (
    InvertedList,
    Probes,
    Vectors,
    batches,
    probed_lists,
)
from ncclean.neighbour_search.knn import (
    Heaps,
    Nearest,
    heap_keys,
    nearest_in_list,
    order_of,
    query_blocks,
)
from ncclean.neighbour_search.list_scanner import ListScanner
from ncclean.neighbour_search.matmul import fastest_matmul, take_float32, to_float32
from ncclean.neighbour_search.scratch_arrays import scratch
from ncclean.storage.array_files import ArrayFolder, Arrays

_ROWS = 4096  # of queries, whose neighbours are looked up or merged at a time


def groups_of_lists(work: ArrayFolder, side: str) -> np.ndarray:
    """(g + 1,) bounds of the groups of consecutive inverted lists."""
    return np.asarray(work.load("groups")[side])


def _lists_of_group(
    work: ArrayFolder, group: int, direction: Direction
) -> tuple[Vectors, Iterator[tuple[int, InvertedList, Probes]]]:
    """The vectors of all queries; the lists of a group, their numbers and the queries of each."""
    first, last = groups_of_lists(work, direction.index)[group : group + 2]
    index = Vectors(work, direction.index)
    queries = index if direction.is_within else Vectors(work, direction.query)
    lists = enumerate(probed_lists(index, queries, direction, first, last), start=first)
    return queries, ((number, members, probes) for number, (members, probes) in lists)


def search_first_list(work: ArrayFolder, group: int, direction: Direction, k: int) -> None:
    """Search each query in its nearest list, for a group of lists; never the query itself."""
    queries, lists = _lists_of_group(work, group, direction)
    ids, numbers = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    keys = [np.empty((0, k), np.int64)]
    for number, members, probes in lists:
        own = probes.ids[probes.rank == 0]
        listed = members.vectors
        for rows in chunks(len(own), _ROWS):
            asked = own[rows]
            if direction.is_within:
                nearest = nearest_in_list(listed[rows], listed, members.ids, k, asked)
            else:
                vectors = to_float32(queries.take_float16(asked), "queries of a list")
                nearest = nearest_in_list(vectors, listed, members.ids, k, None)
            ids.append(asked)
            numbers.append(np.full(len(asked), number, np.int32))
            keys.append(heap_keys(nearest))
    joined = np.concatenate(ids)
    order = np.argsort(joined)
    columns: Arrays = {
        "queries": joined,
        "lists": np.concatenate(numbers),
        "keys": np.concatenate(keys),
    }
    ordered = {name: column[order] for name, column in columns.items()}
    work.save(f"first-{direction.name}-{group}", ordered)


def search_other_lists(work: ArrayFolder, group: int, direction: Direction, k: int) -> None:
    """Search a group's further lists for what beats the k-th neighbour of the nearest list."""
    groups = groups_of_lists(work, direction.index)
    first_list = np.asarray(work.load(f"first-lists-{direction.name}")["lists"])
    queries, lists = _lists_of_group(work, group, direction)
    others = ((members, probes.ids[probes.rank > 0]) for _, members, probes in lists)
    ids, keys = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for batch in batches(others, int(work.load("groups")["room"][0]), len(first_list)):
        scanner = ListScanner(
            partial(take_float32, queries.take_float16(batch.queries)),
            fastest_matmul(batch.comparisons),
        )
        heaps = Heaps(_first_list_keys(work, direction, batch.queries, groups, first_list, k))
        for members, asking in batch.probes:
            rows = np.searchsorted(batch.queries, asking)
            scanner.set_list(members.vectors)
            for block in query_blocks(len(rows), len(members.ids)):
                asked = rows[block]
                hits = scanner.range_search(asked, heaps.thresholds(asked))
                heaps.add(asked, hits, members.ids)
        rows, new = heaps.added()
        ids.append(batch.queries[rows])
        keys.append(new)
        del rows, new
    asked, further = np.concatenate(ids), np.concatenate(keys)
    del ids, keys
    order = np.argsort(asked, kind="stable")
    asked, further = asked[order], further[order]
    # By the group of the query's first list, where it is merged with what that list has.
    of_query = _group_of(groups, first_list[asked])
    order = order_of(of_query, len(groups))
    starts = starts_of(of_query, len(groups) - 1)
    columns = {"queries": asked[order], "keys": further[order], "starts": starts}
    work.save(f"other-{direction.name}-{group}", columns)


def _group_of(groups: np.ndarray, lists: np.ndarray) -> np.ndarray:
    """The groups of lists that these lists are in."""
    of_list = np.repeat(np.arange(len(groups) - 1, dtype=np.int32), np.diff(groups))
    of_each: np.ndarray = of_list[lists]
    return of_each


def _first_list_keys(
    work: ArrayFolder, direction: Direction, ids: np.ndarray, groups: np.ndarray,
    first_list: np.ndarray, k: int,
) -> np.ndarray:  # fmt: skip
    """(q, k) heap keys that `search_first_list` wrote for ascending ids, by their first lists."""
    of_query = _group_of(groups, first_list[ids])
    keys = scratch("keys", (len(ids), k), np.int64)
    for group in np.unique(of_query):
        first = work.load(f"first-{direction.name}-{group}")
        rows = np.flatnonzero(of_query == group)
        for piece in chunks(len(rows), _ROWS):
            places = np.searchsorted(first["queries"], ids[rows[piece]])
            keys[rows[piece]] = first["keys"][places]
    return keys


def merge_heaps(work: ArrayFolder, group: int, direction: Direction, k: int) -> None:
    """Merge the neighbours found in all lists to the k nearest of each query of a group."""
    first = work.load(f"first-{direction.name}-{group}")
    queries = np.asarray(first["queries"])
    others = []
    for number in range(len(groups_of_lists(work, direction.index)) - 1):
        other = work.load(f"other-{direction.name}-{number}")
        here = slice(*other["starts"][group : group + 2])
        others.append((other["queries"][here], other["keys"][here]))
    shape = (len(queries), k)
    nearest = Nearest(np.empty(shape, np.float32), np.empty(shape, np.int32))
    for rows in chunks(len(queries), _ROWS):
        heaps = Heaps(first["keys"][rows].copy())
        pieces = [_between(*other, *queries[rows][[0, -1]]) for other in others]
        asked, keys = (np.concatenate(several) for several in zip(*pieces, strict=True))
        asked = np.searchsorted(queries[rows], asked)
        order = order_of(asked, len(queries[rows]))
        heaps.merge(asked[order], keys[order])
        merged = heaps.nearest()
        nearest.cosines[rows], nearest.ids[rows] = merged.cosines, merged.ids
    columns = {"queries": queries, "lists": first["lists"], **vars(nearest)}
    work.save(f"near-{direction.name}-{group}", columns)


def _between(
    queries: np.ndarray, keys: np.ndarray, first: int, last: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ascending queries from the first to the last, and their keys."""
    begin, end = np.searchsorted(queries, first), np.searchsorted(queries, last, side="right")
    return queries[begin:end], keys[begin:end]


def by_list(work: ArrayFolder, direction: Direction, group: int) -> np.ndarray:
    """(q,) order that sorts the queries of a group, as `nearest_of` has them, by list."""
    lists = np.asarray(work.load(f"near-{direction.name}-{group}")["lists"])
    return order_of(lists, int(lists.max(initial=0)) + 1)


def nearest_of(work: ArrayFolder, direction: Direction, group: int) -> tuple[np.ndarray, Nearest]:
    """The (q,) ascending ids of a group's queries, and the k nearest neighbours of each."""
    file = work.load(f"near-{direction.name}-{group}")
    return np.asarray(file["queries"]), Nearest(file["cosines"], file["ids"])
