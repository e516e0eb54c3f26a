"""One search of a side with the queries of a side, from its tasks to its recall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ncclean.neighbours.block_tasks import Direction
from ncclean.neighbours.blocks import Block
from ncclean.neighbours.knn import recall_by_value
from ncclean.neighbours.search_tasks import (
    gather_nearest,
    nearest_of,
    search_away,
    search_home,
)
from ncclean.neighbours.stages import Stages
from ncclean.neighbours.training import Assigned


def search(stages: Stages, blocks: Sequence[Block], direction: Direction, k: int) -> None:
    """The k nearest of every query, in files by group of lists."""
    name = direction.name
    groups = len(stages.work.load("groups")[direction.index]) - 1
    if stages.has(*(f"near-{name}-{group}" for group in range(groups))):
        return
    what = f"{direction.index} neighbours" if direction.is_within else (
        f"{direction.index} by {direction.query}"
    )  # fmt: skip
    arguments = [(direction, k)] * groups
    stages.run(f"searching {what}", f"home-{name}", search_home, arguments)
    routes = [f"route-{number}" for number in range(len(blocks))]
    stages.joined(f"visits-{name}", routes, {"home": f"{name}_home"})
    stages.run(f"searching {what}, further lists", f"away-{name}", search_away, arguments)
    stages.run(f"merging {what}", f"near-{name}", gather_nearest, arguments)
    stages.drop(f"home-{name}-", f"away-{name}-", f"visits-{name}")


def recall(
    stages: Stages, direction: Direction, assigned: Assigned, queries: Mapping[str, np.ndarray]
) -> float:
    """The share of the true neighbours of the sample that were found."""
    exact = assigned.exact[direction.name]
    if not exact.ids.size:
        return 1.0
    asked = queries[direction.query]
    cosines = np.full(exact.cosines.shape, -np.inf, np.float32)
    for group in range(len(stages.work.load("groups")[direction.index]) - 1):
        rows, nearest = nearest_of(stages.work, direction, group)
        chosen = np.flatnonzero(np.isin(asked, rows))
        cosines[chosen] = nearest.cosines[np.searchsorted(rows, asked[chosen])]
    return recall_by_value(cosines, exact.cosines)
