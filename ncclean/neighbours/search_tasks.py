"""The k nearest by list: one task for each group of consecutive lists.

`search_home` compares queries with their nearest list, `search_away` with the others they visit,
`gather_nearest` merges what was found of the queries whose nearest list is in the group.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ncclean.neighbours.block_tasks import Direction, starts_of
from ncclean.neighbours.chunked import chunks
from ncclean.neighbours.inverted_lists import Vectors, batches, visits
from ncclean.neighbours.knn import (
    Nearest,
    RisingNearest,
    keys_of,
    nearest_in_list,
    order_of,
    query_blocks,
)
from ncclean.neighbours.list_scanner import Products
from ncclean.neighbours.matmul import fastest, taken, widened
from ncclean.neighbours.scratch_arrays import kept
from ncclean.storage.array_files import ArrayFolder

_ROWS = 4096  # of queries, whose neighbours are looked up or merged at a time


def groups_of_lists(work: ArrayFolder, side: str) -> np.ndarray:
    """(g + 1,) where each group of lists begins."""
    return np.asarray(work.load("groups")[side])


def search_home(work: ArrayFolder, group: int, direction: Direction, k: int) -> None:
    """Queries whose nearest list is in the group: the k nearest there, without themselves."""
    first, last = groups_of_lists(work, direction.index)[group : group + 2]
    index = Vectors(work, direction.index)
    queries = index if direction.is_within else Vectors(work, direction.query)
    ids, lists = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    keys = [np.empty((0, k), np.int64)]
    for number, (members, visiting) in enumerate(
        visits(index, queries, direction, first, last), start=first
    ):
        own = visiting.ids[visiting.rank == 0]
        listed = members.vectors
        for rows in chunks(len(own), _ROWS):
            asked = own[rows]
            vectors = listed[rows] if direction.is_within else widened(queries.kept(asked), "home")
            nearest = nearest_in_list(
                vectors, listed, members.ids, k, asked if direction.is_within else None
            )
            ids.append(asked)
            lists.append(np.full(len(asked), number, np.int32))
            keys.append(keys_of(nearest))
    joined = np.concatenate(ids)
    order = np.argsort(joined)
    work.save(
        f"home-{direction.name}-{group}",
        {
            "queries": joined[order],
            "lists": np.concatenate(lists)[order],
            "keys": np.concatenate(keys)[order],
        },
    )


def search_away(work: ArrayFolder, group: int, direction: Direction, k: int) -> None:
    """Queries whose nearest list is another one: what comes up to the k-th found so far."""
    groups = groups_of_lists(work, direction.index)
    first, last = groups[group : group + 2]
    home = np.asarray(work.load(f"visits-{direction.name}")["home"])
    index = Vectors(work, direction.index)
    queries = index if direction.is_within else Vectors(work, direction.query)
    away = (
        (members, visiting.ids[visiting.rank > 0])
        for members, visiting in visits(index, queries, direction, first, last)
    )
    found, keys = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for batch in batches(away, int(work.load("groups")["room"][0]), len(home)):
        ids = batch.queries
        products = Products(partial(taken, queries.kept(ids)), fastest(batch.comparisons))
        best = RisingNearest(_found_at_home(work, direction, ids, groups, home, k))
        for members, asking in batch.visits:
            rows = np.searchsorted(ids, asking)
            products.begin(members.vectors)
            for block in query_blocks(len(rows), len(members.ids)):
                asked = rows[block]
                best.add(asked, products.reaching(asked, best.floors(asked)), members.ids)
        rows, new = best.found()
        found.append(ids[rows])
        keys.append(new)
        del rows, new
    asked, further = np.concatenate(found), np.concatenate(keys)
    del found, keys
    order = np.argsort(asked, kind="stable")
    asked, further = asked[order], further[order]
    # By the group of the query's own list, where it is merged with what was found there.
    of_query = _group_of(groups, home[asked])
    order = order_of(of_query, len(groups))
    work.save(
        f"away-{direction.name}-{group}",
        {
            "queries": asked[order],
            "keys": further[order],
            "starts": starts_of(of_query, len(groups) - 1),
        },
    )


def _group_of(groups: np.ndarray, lists: np.ndarray) -> np.ndarray:
    """The groups of lists that these lists are in."""
    of_list = np.repeat(np.arange(len(groups) - 1, dtype=np.int32), np.diff(groups))
    of_each: np.ndarray = of_list[lists]
    return of_each


def _found_at_home(
    work: ArrayFolder,
    direction: Direction,
    ids: np.ndarray,
    groups: np.ndarray,
    home: np.ndarray,
    k: int,
) -> np.ndarray:
    """(q, k) `keys_of` what `search_home` found for ascending ids, by the list each is at home."""
    of_query = _group_of(groups, home[ids])
    keys = kept("keys", (len(ids), k), np.int64)
    for group in np.unique(of_query):
        at_home = work.load(f"home-{direction.name}-{group}")
        rows = np.flatnonzero(of_query == group)
        for piece in chunks(len(rows), _ROWS):
            places = np.searchsorted(at_home["queries"], ids[rows[piece]])
            keys[rows[piece]] = at_home["keys"][places]
    return keys


def gather_nearest(work: ArrayFolder, group: int, direction: Direction, k: int) -> None:
    """The k nearest of each query whose nearest list is in the group."""
    at_home = work.load(f"home-{direction.name}-{group}")
    queries = np.asarray(at_home["queries"])
    away = [
        _found_away(work, group, direction, number)
        for number in range(len(groups_of_lists(work, direction.index)) - 1)
    ]
    shape = (len(queries), k)
    nearest = Nearest(np.empty(shape, np.float32), np.empty(shape, np.int32))
    for rows in chunks(len(queries), _ROWS):
        best = RisingNearest(at_home["keys"][rows].copy())
        here = [_between(found, *queries[rows][[0, -1]]) for found in away]
        asked, keys = (np.concatenate(several) for several in zip(*here, strict=True))
        asked = np.searchsorted(queries[rows], asked)
        order = order_of(asked, len(queries[rows]))
        best.merge(asked[order], keys[order])
        merged = best.nearest()
        nearest.cosines[rows], nearest.ids[rows] = merged.cosines, merged.ids
    work.save(
        f"near-{direction.name}-{group}",
        {
            "queries": queries,
            "lists": at_home["lists"],
            "cosines": nearest.cosines,
            "ids": nearest.ids,
        },
    )


def _found_away(
    work: ArrayFolder, group: int, direction: Direction, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """What `search_away` found in a group of lists for queries of `group`: they ascend; keys."""
    away = work.load(f"away-{direction.name}-{number}")
    begin, end = away["starts"][group : group + 2]
    return away["queries"][begin:end], away["keys"][begin:end]


def _between(
    found: tuple[np.ndarray, np.ndarray], first: int, last: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of what was found, that of the queries from the first to the last."""
    queries, keys = found
    begin, end = np.searchsorted(queries, first), np.searchsorted(queries, last, side="right")
    return queries[begin:end], keys[begin:end]


def by_list(work: ArrayFolder, direction: Direction, group: int) -> np.ndarray:
    """(q,) the places of a group's queries in `nearest_of`, list by list."""
    lists = np.asarray(work.load(f"near-{direction.name}-{group}")["lists"])
    return order_of(lists, int(lists.max(initial=0)) + 1)


def nearest_of(work: ArrayFolder, direction: Direction, group: int) -> tuple[np.ndarray, Nearest]:
    """The (q,) ascending queries of a group, and the k nearest of each."""
    file = work.load(f"near-{direction.name}-{group}")
    return np.asarray(file["queries"]), Nearest(
        np.asarray(file["cosines"]), np.asarray(file["ids"])
    )
