"""Near-duplicate pairs by list, and their groups over all lists.

A pair is looked for in the lists that the later one of both visits. Of a row that has many earlier
near-duplicates the first few in input order are kept: usually the representative is among them. For
the rest, those whose group is still open are searched again among what can be a representative, so
groups do not depend on how many are kept, and memory does not grow with the size of groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from ncclean.neighbours.block_tasks import Direction, range_of
from ncclean.neighbours.chunked import chunks
from ncclean.neighbours.duplicate_groups import Candidates, DuplicatePairs, SpanningPairs
from ncclean.neighbours.inverted_lists import Members, Vectors, Visitors, visits
from ncclean.neighbours.knn import TIE, block_rows
from ncclean.neighbours.list_scanner import Products
from ncclean.neighbours.matmul import fastest, taken
from ncclean.neighbours.query_batches import Visit, batches
from ncclean.neighbours.search_tasks import groups_of_lists
from ncclean.neighbours.whitening import Whitening
from ncclean.storage.array_files import ArrayFolder

# Near-duplicates lie in the same or an adjacent list, so few need to be visited.
GROUPING_EFFORT = 12
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
    asked_for = _asked_for(visits(vectors, vectors, direction, first, last), effort, chosen)
    for batch in batches(asked_for, int(work.load("groups")["room"][0]), len(lengths)):
        stored = vectors.kept(batch.queries)
        products = Products(partial(_centred, stored, space), fastest(batch.comparisons))
        for members, asking in batch.visits:
            products.begin(space.dual(members.vectors))
            asked = np.searchsorted(batch.queries, asking)
            # Small blocks: the fewer members after the first query of a block, the less for
            # nothing.
            for rows in chunks(len(asking), min(_QUERY_ROWS, block_rows(len(members.ids)))):
                later = asking[rows]
                floors = (threshold - TIE) * lengths[later]
                earlier = int(np.searchsorted(members.ids, later[-1]))
                near = products.reaching(asked[rows], floors, earlier)
                found = Candidates(later[near.rows], members.ids[near.places], near.cosines)
                found = found.at(np.flatnonzero(found.ids < found.queries))
                cosines = found.cosines / lengths[found.queries]
                pairs.add(Candidates(found.queries, found.ids, cosines))
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


def _centred(stored: np.ndarray, space: Whitening, rows: np.ndarray) -> np.ndarray:
    """Rows of float16 vectors as they are multiplied with the members."""
    return space.centred(taken(stored, rows))


def _asked_for(
    visits: Iterable[tuple[Members, Visitors]],
    effort: int,
    chosen: Mapping[str, np.ndarray] | None,
) -> Iterator[Visit]:
    """The members of lists and the rows after the first of them that visit the list.

    `chosen` names those that are compared, if not all are.
    """
    for members, visiting in visits:
        ids = visiting.ids[visiting.rank < effort]
        if chosen is not None:
            ids, is_asked = ids[chosen["queries"][ids]], chosen["members"][members.ids]
            members = members.only(is_asked)
        if len(members.ids):
            yield members, ids[ids > members.ids[0]]


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
            # In float64: a product of matrices rounds by how many rows it has.
            spaces = (space.apply(vectors.take(ids).astype(np.float64)) for ids in pairs)
            similarity[rows[part]] = np.einsum("nd,nd->n", *spaces)
        similarities[side] = similarity
    work.save(f"similarity-{number}", similarities)
