"""The k nearest by list: one task for each group of consecutive lists.

`search_home` compares queries with their nearest list, `search_away` with the others they visit,
`gather_nearest` merges what was found of the queries whose nearest list is in the group.
"""

from __future__ import annotations

import numpy as np

from ncclean.execution.neighbours.batches import batches
from ncclean.execution.neighbours.lists import Vectors, visits
from ncclean.execution.neighbours.passes import Direction, chunks
from ncclean.scoring.neighbours.arithmetic import fastest
from ncclean.scoring.neighbours.products import Products
from ncclean.scoring.neighbours.rising import RisingNearest
from ncclean.scoring.neighbours.search import (
    Candidates,
    Nearest,
    merge_nearest,
    nearest_in_list,
    order_of,
    query_blocks,
)
from ncclean.storage.array_files import ArrayFolder


def groups_of_lists(work: ArrayFolder, side: str) -> np.ndarray:
    """(g + 1,) where each group of lists begins."""
    return np.asarray(work.load("groups")[side])


def search_home(work: ArrayFolder, group: int, direction: Direction, k: int) -> None:
    """Queries whose nearest list is in the group: the k nearest there, without themselves."""
    first, last = groups_of_lists(work, direction.index)[group : group + 2]
    index = Vectors(work, direction.index)
    queries = index if direction.is_within else Vectors(work, direction.query)
    ids, cosines, near = [], [], []
    for members, visiting in visits(index, queries, direction, first, last):
        own = visiting.ids[visiting.rank == 0]
        listed = members.vectors
        vectors = listed if direction.is_within else queries.take(own)
        nearest = nearest_in_list(
            vectors, listed, members.ids, k, own if direction.is_within else None
        )
        ids.append(own)
        cosines.append(nearest.cosines)
        near.append(nearest.ids)
    joined = np.concatenate(ids)
    order = np.argsort(joined)
    lists = np.repeat(np.arange(first, last, dtype=np.int32), [len(own) for own in ids])
    work.save(
        f"home-{direction.name}-{group}",
        {
            "queries": joined[order],
            "lists": lists[order],
            "cosines": np.concatenate(cosines)[order],
            "ids": np.concatenate(near)[order],
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
    by_batch = []
    for batch in batches(away, int(work.load("groups")["room"][0]), len(home)):
        ids = batch.queries
        products = Products(queries.kept(ids), fastest(batch.comparisons))
        of_query = np.searchsorted(groups, home[ids], side="right") - 1
        best = RisingNearest(_found_at_home(work, direction, ids, of_query, k))
        for members, asking in batch.visits:
            rows = np.searchsorted(ids, asking)
            products.begin(members.vectors)
            for block in query_blocks(len(rows), len(members.ids)):
                asked = rows[block]
                best.add(asked, products.reaching(asked, best.floors(asked)), members.ids)
        by_batch.append(best.found(ids))
    further = Candidates.joined(by_batch)
    del by_batch
    # By the group of the query's own list, where it is merged with what was found there.
    of_query = (np.searchsorted(groups, home[further.queries], side="right") - 1).astype(np.int32)
    order = order_of(of_query, len(groups))
    further = further.at(order)
    work.save(
        f"away-{direction.name}-{group}",
        {
            "queries": further.queries,
            "ids": further.ids,
            "cosines": further.cosines,
            "starts": np.searchsorted(of_query[order], np.arange(len(groups))),
        },
    )


def _found_at_home(
    work: ArrayFolder, direction: Direction, ids: np.ndarray, of_query: np.ndarray, k: int
) -> Nearest:
    """What `search_home` found for ascending ids, whose own lists are in the groups `of_query`."""
    cosines, near = np.empty((len(ids), k), np.float32), np.empty((len(ids), k), np.int32)
    for group in np.unique(of_query):
        rows = np.flatnonzero(of_query == group)
        at_home = work.load(f"home-{direction.name}-{group}")
        places = np.searchsorted(at_home["queries"], ids[rows])
        cosines[rows], near[rows] = at_home["cosines"][places], at_home["ids"][places]
    return Nearest(cosines, near)


def gather_nearest(work: ArrayFolder, group: int, direction: Direction, k: int) -> None:
    """The k nearest of each query whose nearest list is in the group."""
    at_home = work.load(f"home-{direction.name}-{group}")
    queries = np.asarray(at_home["queries"])
    cosines = np.empty(at_home["cosines"].shape, np.float32)
    near = np.empty(at_home["ids"].shape, np.int32)
    for rows in chunks(len(queries), int(work.load("groups")["room"][0])):
        home = Nearest(np.asarray(at_home["cosines"][rows]), np.asarray(at_home["ids"][rows]))
        best = merge_nearest(
            queries[rows], home, _found_away(work, group, direction, queries[rows])
        )
        cosines[rows], near[rows] = best.cosines, best.ids
    work.save(
        f"near-{direction.name}-{group}",
        {"queries": queries, "lists": at_home["lists"], "cosines": cosines, "ids": near},
    )


def _found_away(
    work: ArrayFolder, group: int, direction: Direction, queries: np.ndarray
) -> Candidates:
    """What `search_away` found for ascending queries of the group, in all groups of lists."""
    found = []
    for number in range(len(groups_of_lists(work, direction.index)) - 1):
        away = work.load(f"away-{direction.name}-{number}")
        begin, end = away["starts"][group : group + 2]
        names = ("queries", "ids", "cosines")
        here = Candidates(*(np.asarray(away[name][begin:end]) for name in names))
        is_asked = (here.queries >= queries[0]) & (here.queries <= queries[-1])
        found.append(here.at(np.flatnonzero(is_asked)))
    return Candidates.joined(found)


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
