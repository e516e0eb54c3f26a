"""Near-duplicate pairs by list, and their groups over all lists.

A pair is looked for in the lists that the later one of both visits. Of a row that has many earlier
near-duplicates the first few in input order are kept: usually the representative is among them. For
the rest, those whose group is still open are searched again among what can be a representative, so
groups do not depend on how many are kept, and memory does not grow with the size of groups.
"""

from __future__ import annotations

import numpy as np

from ncclean.execution.neighbours.lists import Vectors, visitors
from ncclean.execution.neighbours.passes import Direction, chunks, range_of
from ncclean.execution.neighbours.searches import groups_of_lists
from ncclean.scoring.neighbours.groups import DuplicatePairs, SpanningPairs
from ncclean.scoring.neighbours.search import TIE, Candidates, reaching
from ncclean.scoring.neighbours.whitening import Whitening
from ncclean.storage.array_files import ArrayFolder

# Near-duplicates lie in the same or an adjacent list, so few need to be visited.
GROUPING_EFFORT = 16
_QUERY_ROWS = 512


def find_pairs(
    work: ArrayFolder,
    group: int,
    side: str,
    threshold: float,
    round_: int,
    linkage: str,
    effort: int,
) -> None:
    """Pairs of near-duplicates in a group of lists; see `groups.DuplicatePairs`.

    From the second round on only the rows that the round's file names are compared.
    """
    direction = Direction(side, side)
    first, last = groups_of_lists(work, side)[group : group + 2]
    vectors = Vectors(work, side)
    space = Whitening.of(work.load("learnt"), f"{side}_space_")
    lengths = work.load(f"lengths-{side}")["lengths"]
    chosen = work.load(f"round-{side}-{round_}") if round_ else None
    by_similarity = chosen is not None and bool(chosen["by_similarity"][0])
    pairs: DuplicatePairs | SpanningPairs = DuplicatePairs.kept(by_similarity)
    if linkage == "components":
        pairs = SpanningPairs()
    for members, visiting in zip(
        vectors.lists(first, last), visitors(vectors, direction, first, last), strict=True
    ):
        ids, near = visiting.ids[visiting.rank < effort], members.ids
        near_vectors = members.vectors
        if chosen is not None:
            ids, is_asked = ids[chosen["queries"][ids]], chosen["members"][near]
            near, near_vectors = near[is_asked], near_vectors[is_asked]
        if len(near):
            ids = ids[ids > near[0]]
        if not len(near) or not len(ids):
            continue
        dual = space.dual(near_vectors)
        # Small blocks: the fewer members after the first query of a block, the less for nothing.
        for rows in chunks(len(ids), _QUERY_ROWS):
            later = ids[rows]
            earlier = slice(0, int(np.searchsorted(near, later[-1])))
            queries = space.centred(vectors.take(later))
            floors = (threshold - TIE) * lengths[later]
            for candidates in reaching(queries, later, floors, dual[earlier], near[earlier]):
                candidates = candidates.at(np.flatnonzero(candidates.ids < candidates.queries))
                cosines = candidates.cosines / lengths[candidates.queries]
                pairs.add(Candidates(candidates.queries, candidates.ids, cosines))
    best = pairs.result()
    work.save(
        f"pairs-{side}-{round_}-{group}",
        {
            "later": best.queries,
            "earlier": best.ids,
            "cosines": best.cosines,
            "cut": pairs.cut(),
        },
    )


def similarity_block(work: ArrayFolder, number: int) -> None:
    """The cosine of each distinct row of a block with its representative, whitened."""
    similarities = {}
    for side in ("image", "text"):
        begin, end = range_of(work, side, number)
        representative = work.load(f"groups-{side}")["representative"][begin:end]
        similarity = np.ones(end - begin, np.float32)
        rows = np.flatnonzero(representative != np.arange(begin, end))
        if len(rows):
            vectors = Vectors(work, side)
            space = Whitening.of(work.load("learnt"), f"{side}_space_")
        for part in chunks(len(rows)):
            pairs = (rows[part] + begin, representative[rows[part]])
            spaces = (space.apply(vectors.take(ids)) for ids in pairs)
            similarity[rows[part]] = np.einsum("nd,nd->n", *spaces)
        similarities[side] = similarity
    work.save(f"similarity-{number}", similarities)
