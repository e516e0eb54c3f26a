"""The k nearest by list: one task for each group of consecutive lists.

`search_home` compares queries with their nearest list, `search_away` with the others they visit,
`gather_nearest` merges what was found of the queries whose nearest list is in the group.
"""

from __future__ import annotations

import numpy as np

from ncclean.execution.neighbours.lists import Vectors, visitors
from ncclean.execution.neighbours.passes import Direction
from ncclean.scoring.neighbours.search import (
    Candidates,
    Nearest,
    NearestCandidates,
    merge_nearest,
    nearest_in_list,
    reaching,
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
    for members, visiting in zip(
        index.lists(first, last), visitors(queries, direction, first, last), strict=True
    ):
        own = visiting.ids[visiting.rank == 0]
        vectors = members.vectors if direction.is_within else queries.take(own)
        found = nearest_in_list(
            vectors, members.vectors, members.ids, k, own if direction.is_within else None
        )
        ids.append(own)
        cosines.append(found.cosines)
        near.append(found.ids)
    joined = np.concatenate(ids)
    order = np.argsort(joined)
    work.save(
        f"home-{direction.name}-{group}",
        {
            "queries": joined[order],
            "cosines": np.concatenate(cosines)[order],
            "ids": np.concatenate(near)[order],
        },
    )


def search_away(work: ArrayFolder, group: int, direction: Direction, k: int) -> None:
    """Queries whose nearest list is another one: what comes up to the k-th found there."""
    groups = groups_of_lists(work, direction.index)
    first, last = groups[group : group + 2]
    shared = work.load(f"floors-{direction.name}")
    floors, home = shared["floors"], shared["home"]
    index = Vectors(work, direction.index)
    queries = index if direction.is_within else Vectors(work, direction.query)
    found = NearestCandidates(k)
    for members, visiting in zip(
        index.lists(first, last), visitors(queries, direction, first, last), strict=True
    ):
        ids = visiting.ids[visiting.rank > 0]
        if not len(members.ids) or not len(ids):
            continue
        vectors = queries.take(ids)
        for one in reaching(vectors, ids, floors[ids], members.vectors, members.ids):
            found.add(one)
    best = found.result()
    # By the group of the query's own list, where it is merged with what was found there.
    of_query = np.searchsorted(groups, home[best.queries], side="right") - 1
    order = np.argsort(of_query, kind="stable")
    best = best.at(order)
    work.save(
        f"away-{direction.name}-{group}",
        {
            "queries": best.queries,
            "ids": best.ids,
            "cosines": best.cosines,
            "starts": np.searchsorted(of_query[order], np.arange(len(groups))),
        },
    )


def gather_nearest(work: ArrayFolder, group: int, direction: Direction, k: int) -> None:
    """The k nearest of each query whose nearest list is in the group."""
    found = work.load(f"home-{direction.name}-{group}")
    further = []
    for number in range(len(groups_of_lists(work, direction.index)) - 1):
        away = work.load(f"away-{direction.name}-{number}")
        begin, end = away["starts"][group : group + 2]
        names = ("queries", "ids", "cosines")
        further.append(Candidates(*(np.asarray(away[name][begin:end]) for name in names)))
    home = Nearest(np.asarray(found["cosines"]), np.asarray(found["ids"]))
    queries = np.asarray(found["queries"])
    best = merge_nearest(queries, home, Candidates.joined(further))
    work.save(
        f"near-{direction.name}-{group}",
        {"queries": queries, "cosines": best.cosines, "ids": best.ids},
    )


def nearest_of(work: ArrayFolder, direction: Direction, group: int) -> tuple[np.ndarray, Nearest]:
    """The (q,) ascending queries of a group, and the k nearest of each."""
    found = work.load(f"near-{direction.name}-{group}")
    return np.asarray(found["queries"]), Nearest(
        np.asarray(found["cosines"]), np.asarray(found["ids"])
    )
