"""Gather the pairs that noise affects: captions that move, images that move and their places.

Only what the noise affects is held: for each image with noise, and for each donor, the UTF-8 of the
captions and 16 bytes for each caption, or 32 bytes for an image that moves. Images stay where they
are.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ncclean.data.caption_noise import (
    change_one_word,
    junk_caption,
    with_added_detail,
    with_foreign_sentence,
)
from ncclean.data.captions import ChosenCaptions
from ncclean.data.inject import ImageSource, SampleEdit
from ncclean.data.noise import CODES, WITH_PARTNER, NoisePlan

_DECL = CODES.index("decl")


@dataclass(frozen=True)
class MovedPairs:
    """The captions and images of other pairs that injected noise needs to edit a corpus.

    `starts` (S + 1,) is the number of images before each shard; `own_first` (I + 1,) the number of
    captions before each image in the corpus, and `first` (I + 1,) in the plan; `changes` (I,) bool
    marks the images that change. `captions` are by their number in the corpus, `donated` by their
    number among all captions of the donors. `images` (L,) are the plan's images that move: the
    columns `IMAGE` of an index, and the `url` of their file.
    """

    plan: NoisePlan
    starts: np.ndarray
    own_first: np.ndarray
    first: np.ndarray
    seed: int
    captions: ChosenCaptions
    donated: ChosenCaptions
    changes: np.ndarray
    images: pa.Table

    def edits_of(self, shard: int) -> tuple[dict[int, SampleEdit], dict[str, int]]:
        """Return the edits of a shard by injected noise, by sample, and the number of failed ones.

        These are pairs, by kind, that stay clean: the caption or image from another pair equals
        their own.
        """
        begin, end = int(self.starts[shard]), int(self.starts[shard + 1])
        edits: dict[int, SampleEdit] = {}
        same: Counter[str] = Counter()
        for image in (begin + np.flatnonzero(self.changes[begin:end])).tolist():
            codes = self.plan.code[self.first[image] : self.first[image + 1]]
            if _DECL in codes:
                edit = self._moved_image(image, len(codes))
                same["decl"] += len(codes) if edit is None else 0
            else:
                edit, unchanged = self._moved_captions(image)
                same.update(unchanged)
            if edit is not None:
                edits[image - begin] = edit
        return edits, {kind: count for kind, count in same.items() if count}

    def _moved_captions(self, image: int) -> tuple[SampleEdit | None, list[str]]:
        """Return the edit of an image whose captions change, and the kinds that changed nothing."""
        own = range(int(self.own_first[image]), int(self.own_first[image + 1]))
        slots = range(int(self.first[image]), int(self.first[image + 1]))
        before = [self.captions.of(number) for number in own]
        kinds: list[str | None] = []
        captions: list[str] = []
        parts: list[int | None] = []
        places: list[int] = []  # each clean caption's index before
        unchanged: list[str] = []
        for slot in slots:
            source, kind = int(self.plan.caption_source[slot]), CODES[self.plan.code[slot]]
            after, part = self._caption(slot, kind) if kind else (self.captions.of(source), None)
            is_noisy = kind != "" and after is not None and after not in before
            if kind and not is_noisy:
                unchanged.append(kind)
            kinds.append(kind if is_noisy else None)
            parts.append(part if is_noisy else None)
            captions.append(after if after is not None else self.captions.of(source))
            places.append(len(places) if is_noisy else before.index(captions[-1]))
        if captions == before and not any(kinds):
            return None, unchanged
        moved = None if places == list(range(len(slots))) else tuple(places)
        noisy_parts = tuple(parts) if any(part is not None for part in parts) else ()
        return SampleEdit(tuple(kinds), tuple(captions), None, moved, noisy_parts), unchanged

    def _caption(self, slot: int, kind: str) -> tuple[str | None, int | None]:
        """Return the caption that noise makes, or takes from elsewhere, and its foreign sentence.

        The sentence is None unless just one is foreign.
        """
        source = int(self.plan.caption_source[slot])
        if kind == "donor":
            return self.donated.of(source - int(self.own_first[-1])), None
        before = self.captions.of(source)
        rng = random.Random(f"noise/{self.seed}/{source}")
        if kind == "hard":
            return change_one_word(before, rng), None
        if kind in WITH_PARTNER:
            change = with_foreign_sentence if kind == "foreign_sentence" else with_added_detail
            return change(before, self.captions.of(self.plan.partners[slot]), rng)
        if kind != "junk":
            return before, None
        after = junk_caption(rng)
        while after == before:
            after = junk_caption(rng)
        return after, None

    def _moved_image(self, image: int, captions: int) -> SampleEdit | None:
        shown = self.plan.image_source[image]
        places = np.searchsorted(self.plan.images_moved, [image, shown])
        own, new = self.images.take(places).to_pylist()
        if own["hash"] == new["hash"]:
            return None
        source = ImageSource(new["url"], new["begin"], new["end"])
        return SampleEdit(("decl",) * captions, image=source)


def gather_moved(
    plan: NoisePlan,
    starts: np.ndarray,
    own: np.ndarray,
    seed: int,
    captions: Iterable[pa.ChunkedArray],
    donors: Iterable[pa.ChunkedArray],
    images: pa.Table,
) -> MovedPairs:
    """Gather the captions that injected noise changes or moves, shard by shard.

    `starts` (S + 1,) is the number of images before each shard, `own` (C,) the image of each
    caption of the corpus. `captions` and `donors` are those of the pairs of each shard, and of each
    shard of donors; `images` as in `MovedPairs`.
    """
    numbers = np.arange(int(starts[-1]) + 1)
    own_first, first = np.searchsorted(own, numbers), np.searchsorted(plan.images, numbers)
    changes = np.diff(own_first) != np.diff(first)
    changes[plan.images[plan.code != 0]] = True
    from_corpus = plan.caption_source[changes[plan.images]]
    from_corpus = np.concatenate([from_corpus[from_corpus < len(own)], plan.partner])
    needed = np.union1d(np.flatnonzero(changes[own]), from_corpus)
    from_outside = plan.caption_source[plan.caption_source >= len(own)] - len(own)
    return MovedPairs(
        plan=plan,
        starts=starts,
        own_first=own_first,
        first=first,
        changes=changes,
        seed=seed,
        captions=ChosenCaptions.among(captions, needed),
        donated=ChosenCaptions.among(donors, np.unique(from_outside)),
        images=images,
    )


def side_by_side(images: pa.Table) -> pa.Table:
    """Return the byte ranges of (L,) images once copied one after another, as columns `IMAGE`."""
    sizes = images["end"].to_numpy() - images["begin"].to_numpy()
    ends = np.cumsum(sizes)
    return pa.table({"hash": images["hash"], "begin": ends - sizes, "end": ends})
