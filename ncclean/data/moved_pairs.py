"""The pairs that take part in the noise: captions that change places, images and where they lie.

Of a corpus of N pairs only those with noise are held: a caption's UTF-8 and 16 bytes for each, and
of a donor's as well, or 40 bytes for an image that moves. Images stay where they are.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ncclean.data.caption_noise import change_one_word, junk_caption
from ncclean.data.captions import Captions, ChosenCaptions
from ncclean.data.inject import ImageSource, PairEdit
from ncclean.data.noise import KINDS, NoisePlan
from ncclean.data.shard_index import ShardIndex

_DECL = KINDS.index("decl") + 1


@dataclass(frozen=True)
class IndexedShard:
    """A shard's index and the file that images are read from.

    `packed` is true where that file holds nothing but the members of the images that move, in the
    order of the pairs: a compressed shard cannot be read from the middle.
    """

    index: ShardIndex
    images_url: str
    packed: bool


@dataclass(frozen=True)
class MovedPairs:
    """Captions of the K pairs whose captions change, and images of the L pairs whose images do.

    `captions` are by pair, `donated` by their number among all captions of the donors.
    `image_pairs` (L,) is sorted; `images` (L, 3) has the shard and the `begin` and `end` of each,
    `hashes` (L,) tells images of other bytes apart.
    """

    plan: NoisePlan
    starts: np.ndarray
    seed: int
    urls: list[str]
    captions: ChosenCaptions
    donated: ChosenCaptions
    image_pairs: np.ndarray
    images: np.ndarray
    hashes: np.ndarray

    def edits_of(self, shard: int) -> tuple[dict[int, PairEdit], dict[str, int]]:
        """The edits of a shard by pair, and the number of pairs left unchanged, by kind.

        The latter stay clean: the caption or image that they get from another pair equals their
        own.
        """
        begin, end = int(self.starts[shard]), int(self.starts[shard + 1])
        edits: dict[int, PairEdit] = {}
        same: Counter[str] = Counter()
        for pair in (begin + np.flatnonzero(self.plan.code[begin:end])).tolist():
            edit = self._edit(pair)
            if edit is not None:
                edits[pair - begin] = edit
            else:
                same[KINDS[self.plan.code[pair] - 1]] += 1
        return edits, dict(same)

    def _edit(self, pair: int) -> PairEdit | None:
        kind = KINDS[self.plan.code[pair] - 1]
        if kind == "decl":
            return self._moved_image(pair)
        before = self.captions.of(pair)
        rng = random.Random(f"noise/{self.seed}/{pair}")
        if kind == "hard":
            after = change_one_word(before, rng)
        elif kind == "junk":
            after = junk_caption(rng)
            while after == before:
                after = junk_caption(rng)
        elif kind == "donor":
            after = self.donated.of(int(self.plan.caption_source[pair]) - len(self.plan.code))
        else:
            after = self.captions.of(int(self.plan.caption_source[pair]))
        return PairEdit(kind, caption=after) if after is not None and after != before else None

    def _moved_image(self, pair: int) -> PairEdit | None:
        own, source = np.searchsorted(self.image_pairs, [pair, self.plan.image_source[pair]])
        if self.hashes[own] == self.hashes[source]:
            return None
        shard, begin, end = self.images[source].tolist()
        return PairEdit("decl", image=ImageSource(self.urls[shard], begin, end))


def gather_moved(
    plan: NoisePlan,
    starts: np.ndarray,
    seed: int,
    shards: Iterable[IndexedShard],
    donors: Iterable[Captions] = (),
) -> MovedPairs:
    """Read the captions and images that injected noise moves between pairs, shard by shard.

    `starts` (S + 1,) is the number of pairs before each shard.
    """
    image_pairs = np.flatnonzero(plan.code == _DECL)
    urls: list[str] = []
    images, hashes = [np.empty((0, 3), np.int64)], [np.empty(0, np.uint64)]

    def captions() -> Iterator[Captions]:
        for number, shard in enumerate(shards):
            urls.append(shard.images_url)
            local = _within(image_pairs, starts, number)
            spans = image_spans(shard.index, local, packed=shard.packed)
            images.append(np.insert(spans, 0, number, axis=1))
            hashes.append(shard.index.image_hash[local])
            yield Captions(shard.index.text, shard.index.captions)

    changing = np.flatnonzero((plan.code != 0) & (plan.code != _DECL))
    from_outside = plan.caption_source[plan.caption_source >= len(plan.code)] - len(plan.code)
    return MovedPairs(
        plan=plan,
        starts=starts,
        seed=seed,
        urls=urls,
        captions=ChosenCaptions.among(captions(), changing),
        donated=ChosenCaptions.among(donors, np.unique(from_outside)),
        image_pairs=image_pairs,
        images=np.concatenate(images),
        hashes=np.concatenate(hashes),
    )


def moving_images(plan: NoisePlan, starts: np.ndarray, shard: int) -> np.ndarray:
    """(L,) pairs of a shard, numbered within it, whose images other pairs receive."""
    return _within(np.flatnonzero(plan.code == _DECL), starts, shard)


def image_spans(index: ShardIndex, pairs: np.ndarray, *, packed: bool = False) -> np.ndarray:
    """(L, 2) byte offsets at which the image members of (L,) `pairs` begin and end.

    In the uncompressed shard or, `packed`, in a file of these members alone.
    """
    spans = index.members[index.images[pairs], 2:]
    if not packed:
        return spans
    ends = np.cumsum(spans[:, 1] - spans[:, 0])
    return np.stack([ends - (spans[:, 1] - spans[:, 0]), ends], axis=1)


def _within(pairs: np.ndarray, starts: np.ndarray, shard: int) -> np.ndarray:
    first, last = np.searchsorted(pairs, starts[shard : shard + 2])
    return np.asarray(pairs[first:last] - starts[shard])
