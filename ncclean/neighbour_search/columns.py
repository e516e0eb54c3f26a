"""Columns of all pairs, gathered from the files of their tasks into mapped ones, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ncclean.neighbour_search.better_matches import (
    BetterMatches,
    CandidateCounts,
    count_better,
    count_better_among,
)
from ncclean.neighbour_search.block_tasks import SIDES, Direction
from ncclean.neighbour_search.blocks import Block
from ncclean.neighbour_search.chunked import (
    VALUES,
    add_counts,
    chunks,
    exclusive_sums,
    first_rows,
    take_places,
)
from ncclean.neighbour_search.copies import Distinct
from ncclean.neighbour_search.corpus import Corpus, digests_of
from ncclean.neighbour_search.inverted_lists import InvertedLists, Nearest, NearestHeap
from ncclean.neighbour_search.lemon import LemonParameters, disagreement, lemon_score
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.result import CONTAMINATED, ReferenceMatches
from ncclean.neighbour_search.search_tasks import nearest_of
from ncclean.neighbour_search.stages import Stages
from ncclean.neighbour_search.whitening import Whitening
from ncclean.storage.array_files import ArrayFolder, Arrays


def pair_groups(stages: Stages, corpus: Corpus) -> Arrays:
    """(n,) near-duplicate groups by image, by text and by both, each named by its first pair.

    Also `same_image`, the first pair of the same image, where images have several captions.
    """
    if not stages.has("pair-groups"):
        names = ["image", "text", "pair", *(["same_image"] if corpus.has_captions else [])]
        shapes = {name: ((len(corpus),), np.int32) for name in names}
        with stages.writing("pair-groups", shapes) as groups:
            for side, classes in corpus.distinct.items():
                representative = stages.work.load(f"groups-{side}")["representative"]
                for rows in chunks(len(corpus), VALUES):
                    labels = classes.labels[rows]
                    groups[side][rows] = classes.first[representative[labels]]

            def both() -> Iterator[np.ndarray]:
                for rows in chunks(len(corpus), VALUES):
                    one = [groups[side][rows].astype(np.uint64) for side in SIDES]
                    yield np.stack(one, axis=1)

            first_rows(stages.work, both, groups["pair"])
            if corpus.has_captions:
                first_rows(stages.work, digests_of(corpus.files, "sample"), groups["same_image"])
    return stages.work.load("pair-groups")


def group_sizes(stages: Stages, groups: Arrays) -> Arrays:
    """(n,) number of pairs in each near-duplicate group, at the group's first pair.

    `images` is how many images an image group has: captions of one image are not near-duplicates.
    """
    if not stages.has("sizes"):
        count = len(groups["pair"])
        shapes = dict.fromkeys(("image", "text", "pair", "images"), ((count,), np.int32))
        with stages.writing("sizes", shapes) as sizes:
            for name in ("image", "text", "pair"):
                add_counts(sizes[name], groups[name])
            for rows in chunks(count, VALUES):
                firsts = groups["image"][rows]
                if "same_image" in groups:
                    own = np.arange(rows.start, rows.stop)
                    firsts = firsts[groups["same_image"][rows] == own]
                add_counts(sizes["images"], firsts)
    return stages.work.load("sizes")


def lemon_scores(stages: Stages, corpus: Corpus, tasks: Mapping[str, int], k: int) -> np.ndarray:
    """(n,) LEMoN scores of all pairs, from the terms of both modalities; `tasks` by side."""
    parameters = LemonParameters(k=k)
    shape = (len(corpus),), np.float32
    if not stages.has("lemon"):
        with stages.work.scratch(dict.fromkeys(SIDES, shape)) as terms:
            for side in SIDES:
                text, arguments = f"comparing with {side} neighbours", [(side, k)] * tasks[side]
                names = stages.run(text, f"lemon-{side}", lemon_block, arguments)
                stages.scattered(names, "terms", terms[side])
            with stages.writing("lemon", {"lemon": shape}) as scores:
                for rows in chunks(len(corpus), VALUES):
                    scores["lemon"][rows] = lemon_score(
                        corpus.own[rows], terms["image"][rows], terms["text"][rows], parameters
                    )
    return stages.work.load("lemon")["lemon"]


def better_among_neighbours(
    stages: Stages, corpus: Corpus, direction: Direction, tasks: int
) -> np.ndarray:
    """(n,) better matches of each pair among its neighbours of one direction."""
    name = f"better-{direction.name}"
    if not stages.has(name):
        _write_candidate_counts(stages, corpus, direction)
        names = stages.run("counting better matches", name, better_block, [(direction,)] * tasks)
        with stages.writing(name, {"counts": ((len(corpus),), np.int32)}) as arrays:
            stages.scattered(names, "counts", arrays["counts"])
    return stages.work.load(name)["counts"]


def _write_candidate_counts(stages: Stages, corpus: Corpus, direction: Direction) -> None:
    """Write the keys of `CandidateCounts`: pairs in the order of candidates, sorted by group."""
    name = f"candidates-{direction.name}"
    if stages.has(name):
        return
    group = stages.work.load("pair-groups")[direction.query]
    sizes = stages.work.load("sizes")[direction.query]
    candidates = corpus.distinct[direction.index]
    with stages.work.scratch({"place": ((len(corpus),), np.int64)}) as scratch:
        place, candidate_counts = scratch["place"], 0
        for rows in chunks(len(corpus), VALUES):
            place[rows] = np.where(sizes[rows] > 1, sizes[rows], 0)
            candidate_counts += int(place[rows].sum())
        exclusive_sums(place, place)
        with stages.writing(name, {"keys": ((candidate_counts,), np.int64)}) as arrays:
            for rows in chunks(len(corpus), VALUES):
                pairs = candidates.members[rows]
                pairs = pairs[sizes[group[pairs]] > 1]
                if len(pairs):
                    keys = CandidateCounts.keys_of(
                        group[pairs], candidates.labels[pairs], len(candidates)
                    )
                    arrays["keys"][take_places(group[pairs], place)] = keys


def better_of_all(stages: Stages, blocks: Sequence[Block], corpus: Corpus) -> BetterMatches:
    """Count better matches of every pair by comparing every image with every caption."""
    stages.progress.say("comparing images with captions")
    shape = (len(corpus), corpus.dim), np.float16
    groups = stages.work.load("pair-groups")
    with stages.work.scratch(dict.fromkeys(SIDES, shape)) as vectors:
        begin = 0
        for pairs in (block.read() for block in blocks):
            here = slice(begin, begin + len(pairs.image))
            vectors["image"][here], vectors["text"][here] = pairs.image, pairs.text
            begin = here.stop
        both = vectors["image"], vectors["text"]
        return count_better(*both, corpus.own, groups["image"], groups["text"])


def distinct_columns(stages: Stages, corpus: Corpus) -> Arrays:
    """(n,) `cluster`, and by side the cosine with the representative of the near-duplicates."""
    if not stages.has("columns"):
        shape = (len(corpus),)
        shapes = {**dict.fromkeys(SIDES, (shape, np.float32)), "cluster": (shape, np.int32)}
        clusters = stages.work.load("clusters")["cluster"]
        similarity = {side: stages.work.load(f"groups-{side}")["similarity"] for side in SIDES}
        with stages.writing("columns", shapes) as columns:
            for rows in chunks(len(corpus), VALUES):
                for side, classes in corpus.distinct.items():
                    columns[side][rows] = similarity[side][classes.labels[rows]]
                columns["cluster"][rows] = clusters[corpus.distinct["image"].labels[rows]]
    return stages.work.load("columns")


def reference_matches(
    stages: Stages,
    corpus: Corpus,
    reference: np.ndarray | None,
    tasks: Sequence[slice],
    whiten: bool,
    options: NeighbourOptions,
) -> ReferenceMatches | None:
    """Find the nearest reference image of every image; None without a reference.

    `tasks` are the rows of each task.
    """
    if reference is None:
        return None
    stages.save("reference", image=reference)
    text, arguments = "comparing with the reference", [(rows, whiten) for rows in tasks]
    names = stages.run(text, "reference", reference_block, arguments)
    limit = options.contamination_threshold
    limit = CONTAMINATED[whiten] if limit is None else limit
    if not stages.has("matches"):
        count, distinct = (len(corpus),), (len(corpus.distinct["image"]),)
        types = {"similarity": np.float32, "nearest": np.int64, "contaminated": np.bool_}
        of_distinct = {name: (distinct, kind) for name, kind in types.items()}
        of_pairs = {name: (count, kind) for name, kind in types.items()}
        with (
            stages.work.scratch(of_distinct) as matches,
            stages.writing("matches", of_pairs) as columns,
        ):
            for file in map(stages.work.load, names):
                for name in ("similarity", "nearest"):
                    matches[name][file["ids"]] = file[name]
                matches["contaminated"][file["ids"]] = file["compared"] >= limit
            for rows in chunks(len(corpus), VALUES):
                for name, values in matches.items():
                    columns[name][rows] = values[corpus.distinct["image"].labels[rows]]
    return ReferenceMatches(**stages.work.load("matches"), threshold=limit)


class PairRows:
    """The vectors of pairs in one modality."""

    def __init__(self, lists: InvertedLists, labels: np.ndarray) -> None:
        self._lists, self._labels = lists, labels
        self.dim = lists.dim

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self._lists.take(self._labels[rows])


def classes_of(work: ArrayFolder, side: str) -> Distinct:
    """The classes of equal rows of images or of captions."""
    return Distinct.of(work.load(f"classes-{side}"))


def pairs_of_rows(distinct: Distinct, rows: np.ndarray) -> np.ndarray:
    """All pairs whose vectors equal one of the distinct rows, row by row."""
    begins, ends = distinct.starts[rows], distinct.starts[rows + 1]
    sizes = ends - begins
    offsets = np.repeat(begins - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    pairs: np.ndarray = distinct.members[np.arange(int(sizes.sum())) + offsets]
    return pairs


def lemon_block(work: ArrayFolder, number: int, side: str, k: int) -> None:
    """LEMoN's term of one modality, for the pairs with the vectors of one task's search."""
    other = "text" if side == "image" else "image"
    shared = work.load("pair-groups")
    distinct = classes_of(work, side)
    queries, nearest = nearest_of(work, Direction(side, side), number)
    # List by list, so that pairs that follow one another have neighbours in common.
    by_list = np.argsort(work.load(f"lists-{side}")["place"][queries])
    pairs = pairs_of_rows(distinct, queries[by_list])
    copies = [shared[name] for name in ("pair", "same_image") if name in shared]
    theirs = PairRows(InvertedLists(work, other), classes_of(work, other).labels)
    terms = disagreement(
        pairs, queries, nearest, distinct, theirs, work.load("own")["own"], copies, k,
        LemonParameters(k=k),
    )  # fmt: skip
    work.save(f"lemon-{side}-{number}", {"pairs": pairs, "terms": terms})


def better_block(work: ArrayFolder, number: int, direction: Direction) -> None:
    """Better matches of the pairs with the vectors of one task's search."""
    shared, candidates = work.load("pair-groups"), classes_of(work, direction.index)
    keys = work.load(f"candidates-{direction.name}")["keys"]
    queries, nearest = nearest_of(work, direction, number)
    asking = classes_of(work, direction.query)
    pairs = pairs_of_rows(asking, queries)
    rows = np.searchsorted(queries, asking.labels[pairs])
    counts = count_better_among(
        pairs,
        Nearest(nearest.cosines[rows], nearest.ids[rows]),
        work.load("own")["own"],
        shared[direction.query],
        shared[direction.index],
        CandidateCounts(keys, work.load("sizes")[direction.query], candidates),
    )
    work.save(f"better-{direction.name}-{number}", {"pairs": pairs, "counts": counts})


def reference_block(work: ArrayFolder, number: int, rows: slice, whiten: bool) -> None:
    """The nearest reference image of consecutive images in the order of lists, and its cosine."""
    lists, reference = InvertedLists(work, "image"), work.load("reference")["image"]
    space = Whitening.of(work.load("learnt"), "image_space_")
    queries = lists.read(rows)
    plain, whitened = NearestHeap(queries, 1), NearestHeap(space.apply(queries), 1)
    for piece in chunks(len(reference)):
        vectors, numbers = reference[piece].astype(np.float32), np.arange(piece.start, piece.stop)
        plain.add(vectors, numbers)
        if whiten:
            whitened.add(space.apply(vectors), numbers)
    nearest = plain.nearest()
    compared = whitened.nearest() if whiten else nearest
    work.save(
        f"reference-{number}",
        {"ids": lists.ids[rows], "similarity": nearest.cosines[:, 0],
         "nearest": nearest.ids[:, 0], "compared": compared.cosines[:, 0]},
    )  # fmt: skip
