"""Near-duplicate pairs by list, and their groups over all lists.

A pair is looked for in the lists that the later one of both probes. Of a row that has many earlier
near-duplicates the first few in input order are kept: usually the representative is among them. For
the rest, those whose group is still open are searched again among what can be a representative, so
groups do not depend on how many are kept, and memory does not grow with the size of groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ncclean.neighbour_search.block_tasks import Direction, range_of
from ncclean.neighbour_search.chunked import DisjointSets, add_counts, chunks
from ncclean.neighbour_search.corpus import Corpus
from ncclean.neighbour_search.duplicate_groups import (
    MAX_PAIRS,
    Candidates,
    FirstPairs,
    Leaders,
    SpanningForest,
    join_single_rows,
)
from ncclean.neighbour_search.inverted_lists import (
    InvertedList,
    Probe,
    Probes,
    Vectors,
    batches,
    probed_lists,
)
from ncclean.neighbour_search.knn import TIE, block_rows
from ncclean.neighbour_search.list_scanner import ListScanner
from ncclean.neighbour_search.matmul import fastest_matmul, take_float32
from ncclean.neighbour_search.result import SAME_IMAGE_COSINE
from ncclean.neighbour_search.search_tasks import groups_of_lists, nearest_of
from ncclean.neighbour_search.stages import Stages
from ncclean.neighbour_search.whitening import Whitening
from ncclean.storage.array_files import ArrayFolder

_ROWS = 1 << 15  # whose pairs are held at a time


def group_side(
    stages: Stages,
    corpus: Corpus,
    side: str,
    name: str,
    threshold: float,
    linkage: str,
    effort: int,
) -> None:
    """Group near-duplicates of one side; write the representative of each distinct row to a file.

    `effort` is how many lists a row visits to find them.
    """
    if stages.has(name):
        return
    count = len(corpus.distinct[side])
    groups = len(stages.work.load("groups")[side]) - 1

    def compare(number: int) -> Iterator[tuple[slice, Candidates, np.ndarray]]:
        arguments = [(side, threshold, number, linkage, effort)] * groups
        text = f"comparing {side} near-duplicates"
        return _pairs(
            stages, stages.run(text, f"pairs-{side}-{number}", find_duplicates, arguments), count
        )

    def ask(number: int, by_similarity: bool) -> None:
        stages.save(
            f"round-{side}-{number}",
            queries=leaders.queries, members=leaders.members,
            by_similarity=np.array([by_similarity]),
        )  # fmt: skip

    with stages.work.scratch(Leaders.shapes(count)) as arrays:
        leaders = Leaders(arrays)
        if linkage == "components":
            sets = DisjointSets(leaders.representative)
            for _, pairs, _ in compare(0):
                sets.join(pairs.queries, pairs.ids)
            sets.finish()
        else:
            number = 0
            while not number or leaders.search():
                if number:
                    ask(number, by_similarity=False)
                for round_ in compare(number):
                    leaders.decide(*round_)
                number += 1
            if leaders.search_nearest():
                ask(number, by_similarity=True)
                for _, pairs, _ in compare(number):
                    leaders.move(pairs)
        stages.save(name, representative=leaders.representative)


def join_single_images(stages: Stages, before: str, name: str) -> None:
    """Add images without near-duplicates to a group that matches in the model's own space."""
    if stages.has(name):
        return
    groups = len(stages.work.load("groups")["image"]) - 1
    arguments = [(SAME_IMAGE_COSINE,)] * groups
    names = stages.run("comparing images as they are", "same", same_images, arguments)
    files = [stages.work.load(one) for one in names]
    representative = stages.work.load(before)["representative"]
    count = len(representative)
    shape = (count,), np.int32
    with stages.work.scratch({"representative": shape, "sizes": shape}) as arrays:
        arrays["representative"][:] = representative
        add_counts(arrays["sizes"], representative)
        for rows in chunks(count, _ROWS):
            here = [_of_rows(file, "later", rows) for file in files]
            later, earlier = (
                np.concatenate([file[column][one] for file, one in zip(files, here, strict=True)])
                for column in ("later", "earlier")
            )
            order = np.argsort(later, kind="stable")
            queries, starts = np.unique(later[order], return_index=True)
            near = np.split(earlier[order], starts)[1:]
            join_single_rows(arrays["representative"], arrays["sizes"], queries, near)
        stages.save(name, representative=arrays["representative"])


def _pairs(
    stages: Stages, names: Sequence[str], count: int
) -> Iterator[tuple[slice, Candidates, np.ndarray]]:
    """Yield pairs of consecutive rows in all lists, by later row, and the rows of cut pairs."""
    files = [stages.work.load(name) for name in names]
    for rows in chunks(count, _ROWS):
        here = [_of_rows(file, "later", rows) for file in files]
        pairs = Candidates.joined([
            Candidates(file["later"][one], file["earlier"][one], file["cosines"][one])
            for file, one in zip(files, here, strict=True)
        ])  # fmt: skip
        cut = np.concatenate([file["cut"][_of_rows(file, "cut", rows)] for file in files])
        order = np.lexsort((-pairs.cosines, pairs.queries))
        yield rows, pairs.at(order), np.unique(cut)


def _of_rows(file: Mapping[str, np.ndarray], column: str, rows: slice) -> slice:
    """The slice of an ascending column that has these rows."""
    # Values of another type would make a copy of the whole column.
    ends = np.array([rows.start, rows.stop], file[column].dtype)
    return slice(*np.searchsorted(file[column], ends).tolist())


# Near-duplicates lie in the same or an adjacent list, so few need to be visited.
GROUPING_EFFORT = 12
_QUERY_ROWS = 512


def find_duplicates(
    work: ArrayFolder,
    group: int,
    side: str,
    threshold: float,
    round_: int,
    linkage: str,
    effort: int,
) -> None:
    """Find pairs of near-duplicates in a group of inverted lists.

    From the second round on only the rows that the round's file names are compared.
    """
    direction = Direction(side, side)
    first, last = groups_of_lists(work, side)[group : group + 2]
    vectors = Vectors(work, side)
    space = Whitening.of(work.load("learnt"), f"{side}_space_")
    lengths = work.load(f"lengths-{side}")["lengths"]
    chosen = work.load(f"round-{side}-{round_}") if round_ else None
    by_similarity = chosen is not None and bool(chosen["by_similarity"][0])
    pairs: FirstPairs | SpanningForest = FirstPairs(
        1 if by_similarity else MAX_PAIRS, by_similarity
    )
    if linkage == "components":
        pairs = SpanningForest()
    asked_for = _compared(probed_lists(vectors, vectors, direction, first, last), effort, chosen)
    for batch in batches(asked_for, int(work.load("groups")["room"][0]), len(lengths)):
        stored = vectors.take_float16(batch.queries)
        products = ListScanner(partial(_centred, stored, space), fastest_matmul(batch.comparisons))
        for members, asking in batch.probes:
            products.set_list(space.dual(members.vectors))
            asked = np.searchsorted(batch.queries, asking)
            # Small blocks: the fewer members after the first query of a block, the less for
            # nothing.
            for rows in chunks(len(asking), min(_QUERY_ROWS, block_rows(len(members.ids)))):
                later = asking[rows]
                thresholds = (threshold - TIE) * lengths[later]
                earlier = int(np.searchsorted(members.ids, later[-1]))
                near = products.range_search(asked[rows], thresholds, earlier)
                found = Candidates(later[near.rows], members.ids[near.places], near.cosines)
                found = found.at(np.flatnonzero(found.ids < found.queries))
                cosines = found.cosines / lengths[found.queries]
                pairs.add(Candidates(found.queries, found.ids, cosines))
    best = pairs.result()
    work.save(
        f"pairs-{side}-{round_}-{group}",
        {"later": best.queries, "earlier": best.ids, "cosines": best.cosines, "cut": pairs.cut()},
    )


def _centred(stored: np.ndarray, space: Whitening, rows: np.ndarray) -> np.ndarray:
    """Rows of float16 vectors as they are multiplied with the members."""
    return space.centred(take_float32(stored, rows))


def _compared(
    probed_lists: Iterable[tuple[InvertedList, Probes]],
    effort: int,
    chosen: Mapping[str, np.ndarray] | None,
) -> Iterator[Probe]:
    """The members of lists and the rows after the first of them that visit the list.

    `chosen` names those that are compared, if not all are.
    """
    for members, probes in probed_lists:
        ids = probes.ids[probes.rank < effort]
        if chosen is not None:
            ids, is_asked = ids[chosen["queries"][ids]], chosen["members"][members.ids]
            members = members.only(is_asked)
        if len(members.ids):
            yield members, ids[ids > members.ids[0]]


def same_images(work: ArrayFolder, group: int, threshold: float) -> None:
    """Pairs of images of a group of lists whose cosine in the model's space is high enough."""
    queries, nearest = nearest_of(work, Direction("image", "image"), group)
    edge = (nearest.cosines >= threshold) & (nearest.ids >= 0)
    edge &= nearest.ids < queries[:, None]
    rows, places = np.nonzero(edge)
    work.save(f"same-{group}", {"later": queries[rows], "earlier": nearest.ids[rows, places]})


def similarity_block(work: ArrayFolder, number: int) -> None:
    """Whitened cosine of each distinct row of a block with its group's representative."""
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
