"""Search the whole corpus: all results of `ncclean neighbours` about its pairs.

The corpus is read block by block, its vectors are written by list, and the lists are searched for
some of the vectors at a time. The results for each pair are in mapped files, as are vectors and
neighbours. Results depend on the memory, and on how many tasks run at a time and where, only by the
rounding of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ncclean.base.progress import SILENT, Progress
from ncclean.neighbour_search.better_matches import better_among_neighbours, better_of_all
from ncclean.neighbour_search.blocks import EmbeddedBlock
from ncclean.neighbour_search.corpus import (
    ACROSS,
    SIDES,
    WITHIN,
    Corpus,
    Direction,
    pair_groups,
    read_corpus,
    repeated_uids,
)
from ncclean.neighbour_search.inverted_lists import (
    TIE,
    Nearest,
    likely_nprobe,
    nearest_of,
    search_lists,
    task_rows,
)
from ncclean.neighbour_search.lemon import LemonParameters, lemon_block, lemon_score
from ncclean.neighbour_search.near_duplicates import (
    GROUPING_EFFORT,
    THRESHOLDS,
    group_side,
    join_single_images,
)
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.reference import CONTAMINATED, reference_matches
from ncclean.neighbour_search.stages import Stages
from ncclean.neighbour_search.training import (
    duplicate_recall,
    fill_lists,
    is_exact,
    learn,
    nprobe_of,
)
from ncclean.neighbour_search.whitening import ROWS_PER_DIMENSION
from ncclean.runners.runner import Runner
from ncclean.storage.array_files import ArrayFolder, Arrays

DEFAULT_MEMORY = 4 << 30
# Where `pair_groups` has the sizes of groups: several captions of an image are one image.
GROUP_SIZES = {"image": "images", "text": "text_size", "pair": "pair_size"}


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The results of a neighbour search, in mapped arrays of n pairs or u distinct vectors a side.

    `groups` are those of `pair_groups`. `similarity` (u,), by side, is the cosine with the first of
    the near-duplicate group, whitened if the search is. `clusters` (u,) are of images. `captions`
    and `images` (n,) are the numbers of better matches of each pair, `terms` (n,), by side, those
    of LEMoN. `matches` (u,) are those of `reference_matches`, and images at or above
    `contamination_threshold` are contaminated. `facts` are fields of the summary.
    """

    corpus: Corpus
    groups: Arrays
    similarity: Arrays
    clusters: np.ndarray
    captions: np.ndarray
    images: np.ndarray
    terms: Arrays
    matches: Arrays | None
    contamination_threshold: float
    facts: dict[str, Any]

    def columns(self, rows: slice) -> dict[str, np.ndarray]:
        """Return columns of `schema.NEIGHBOURS` for m of the pairs, (m,) each, without identifiers.

        Groups are numbers of their first pairs; -1, and a NaN cosine, for a pair alone.
        `nearest_reference` is a row of the reference.
        """
        columns = {}
        for name, size in GROUP_SIZES.items():
            is_alone = self.groups[size][rows] == 1
            columns[f"{name}_group"] = np.where(is_alone, -1, self.groups[name][rows])
            if name in self.similarity:
                similarity = self.similarity[name][self.corpus.distinct[name].labels[rows]]
                columns[f"{name}_group_similarity"] = np.where(is_alone, np.nan, similarity)
        captions, images = self.captions[rows], self.images[rows]
        image_terms, text_terms = (self.terms[side][rows] for side in SIDES)
        labels = self.corpus.distinct["image"].labels[rows]
        columns |= {
            "better_captions": captions,
            "better_images": images,
            "mutual_nearest": (captions == 0) & (images == 0),
            "lemon_score": lemon_score(
                self.corpus.own[rows], image_terms, text_terms, LemonParameters()
            ),
            "cluster": self.clusters[labels],
        }
        if self.matches is not None:
            columns |= {
                "reference_similarity": self.matches["similarity"][labels],
                "nearest_reference": self.matches["nearest"][labels],
                "contaminated": self.matches["compared"][labels] >= self.contamination_threshold,
            }
        return columns


def find_neighbours(
    blocks: Sequence[EmbeddedBlock],
    options: NeighbourOptions,
    work: ArrayFolder,
    runner: Runner,
    *,
    memory_bytes: int = DEFAULT_MEMORY,
    progress: Progress = SILENT,
    reference: np.ndarray | None = None,
) -> Neighbours:
    """Search a corpus of embeddings for near-duplicates, better matches and LEMoN's neighbours.

    `work` keeps finished stages if the search is killed; the same call resumes there. A task uses
    about `memory_bytes`. `reference` (r, d) are images of another corpus to compare with. Raises
    `InputError` for a corpus without a usable pair.
    """
    stages = Stages(work, runner, progress)
    corpus = read_corpus(stages, blocks)
    whiten = options.whiten
    if whiten is None:
        fewest = min(len(distinct) for distinct in corpus.distinct.values())
        whiten = fewest >= ROWS_PER_DIMENSION * corpus.dim
    requested = {"image": options.image_threshold, "text": options.text_threshold}
    thresholds = {side: requested[side] or THRESHOLDS[side][whiten] for side in SIDES}
    exact = is_exact(options, len(corpus))
    # Products with one list are too small for several threads, which would wait for one another.
    with threadpool_limits(None if exact else 1):
        queries = learn(stages, blocks, corpus, options, whiten=whiten, exact=exact)
        nearest = fill_lists(stages, blocks, corpus, queries, options.k)
        lists = {side: len(work.load("learnt")[f"{side}_lists"]) for side in SIDES}
        tasks = {
            side: task_rows(len(corpus.distinct[side]), corpus.dim, options.k,
                            likely_nprobe(lists[side]), memory_bytes)
            for side in SIDES
        }  # fmt: skip
        joins = whiten and options.image_threshold is None  # single images, by their plain cosines
        for side in SIDES:
            group_side(
                stages, side, "leaders-image" if joins and side == "image" else f"groups-{side}",
                tasks[side], thresholds[side], options.linkage,
                lists[side] if exact else GROUPING_EFFORT,
            )  # fmt: skip
        nprobe, recalls = {}, dict.fromkeys((direction.name for direction in ACROSS), 1.0)

        def search(direction: Direction) -> None:
            name, index = direction.name, direction.index
            nprobe[name] = (
                lists[index]
                if exact
                else nprobe_of(stages, nearest[name], direction, options.recall)
            )
            k = corpus.width(direction, options.k)
            what = f"{index} neighbours" if direction.is_within else f"{index} by {direction.query}"
            arguments = [(direction, rows, k, nprobe[name]) for rows in tasks[direction.query]]
            stages.run(f"searching {what}", f"near-{name}", search_lists, arguments)
            recalls[name] = recall(
                stages, direction, queries[direction.query], nearest[name], len(arguments)
            )

        for direction in WITHIN:
            search(direction)
        if joins:
            join_single_images(stages, len(tasks["image"]))
        groups = pair_groups(stages, corpus)
        terms: Arrays = {}
        for side in SIDES:
            text, arguments = (
                f"comparing with {side} neighbours",
                [(side, options.k)] * len(tasks[side]),
            )
            files = stages.run(text, f"lemon-{side}", lemon_block, arguments)
            terms |= stages.gather(f"lemon-{side}", files, {side: ((len(corpus),), np.float32)})
        if exact:
            captions, images = better_of_all(stages, blocks, corpus, groups)
        else:
            for direction in ACROSS:
                search(direction)
            captions, images = (
                better_among_neighbours(stages, corpus, groups, one, len(tasks[one.query]))
                for one in ACROSS
            )
        matches = None
        if reference is not None:
            matches = reference_matches(stages, reference, tasks["image"], whiten)
    contaminated = options.contamination_threshold or CONTAMINATED[whiten]
    facts: dict[str, Any] = {
        "pairs": len(corpus), "left_out": corpus.left_out, "whitened": whiten, "exact": exact,
        "image_to_text_recall": recalls["image-text"],
        "text_to_image_recall": recalls["text-image"],
    }  # fmt: skip
    for modality, other in (("image", "text"), ("text", "image")):
        within, across = f"{modality}-{modality}", f"{other}-{modality}"
        index, duplicates = "flat (exact)", 1.0
        if not exact:
            visited = f"{nprobe[within]} and {nprobe[across]} visited"
            index = f"ivf ({lists[modality]} lists, {visited})"
            white = nearest[f"{modality}_whitened-{modality}"]
            duplicates = duplicate_recall(stages, white, modality, thresholds[modality])
        facts |= {
            f"distinct_{modality}s": len(corpus.distinct[modality]),
            f"{modality}_threshold": thresholds[modality],
            f"index_{modality}": index,
            f"{modality}_recall": recalls[within],
            f"{modality}_duplicate_recall": duplicates,
        }
    if reference is not None:
        facts |= {"reference_images": len(reference), "contamination_threshold": contaminated}
    facts["repeated_uids"] = repeated_uids(stages, corpus)
    return Neighbours(
        corpus=corpus,
        groups=groups,
        similarity={side: work.load(f"groups-{side}")["similarity"] for side in SIDES},
        clusters=work.load("clusters")["cluster"],
        captions=captions,
        images=images,
        terms=terms,
        matches=matches,
        contamination_threshold=contaminated,
        facts=facts,
    )


def recall(
    stages: Stages, direction: Direction, sampled: np.ndarray, exact: Nearest, tasks: int
) -> float:
    """Return the share of the exact neighbours of sampled queries that the search found.

    `sampled` (q,) are the queries' ids, `exact` their neighbours. Ties with the k-th count as
    found.
    """
    if not exact.ids.size:
        return 1.0
    cosines = np.full(exact.cosines.shape, -np.inf, np.float32)
    for number in range(tasks):
        rows, nearest = nearest_of(stages.work, direction, number)
        chosen = np.flatnonzero(np.isin(sampled, rows))
        cosines[chosen] = nearest.cosines[np.searchsorted(rows, sampled[chosen])]
    return float((cosines >= exact.cosines[:, -1:] - TIE).mean())
