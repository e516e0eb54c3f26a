"""An index of the captions of a corpus, kept in files: those nearest to one image, at once.

It is made in one pass over the embeddings, block by block, and goes on where it was interrupted.
Captions lie by inverted list as float16, so a search reads the few lists nearest to its image;
nothing is held in memory for each caption. Equal captions of a block are there once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ncclean.base.progress import SILENT, Progress
from ncclean.data.embeddings.facts import SOURCES
from ncclean.data.embeddings.pairs import EmbeddedPairs, read_pairs, unit_vectors
from ncclean.data.embeddings.units import LAYOUTS
from ncclean.data.parquet_table import read_table
from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError
from ncclean.neighbour_search.blocks import EmbeddedBlock
from ncclean.neighbour_search.corpus import caption_digests, digests
from ncclean.neighbour_search.inverted_lists import (
    InvertedLists,
    likely_nprobe,
    nearest_lists,
    nlist_for,
    train_lists,
)
from ncclean.neighbour_search.stages import Stages
from ncclean.neighbour_search.training import EXACT_BELOW
from ncclean.runners.runner import InProcess
from ncclean.storage.array_files import ArrayFolder

_SAMPLED_PER_LIST = 32
_LISTED = ("vectors", "starts", "ids", "ids")  # a caption's id is its row
_SEED = 0


class Row(NamedTuple):
    """Place of a pair: the number of its block, of the shard in it, and of the shard's row.

    `caption` is the digest of its caption.
    """

    block: int
    shard: int
    row: int
    caption: int


class NearCaption(NamedTuple):
    """A caption and its cosine with the image."""

    text: str
    similarity: float


class CaptionIndex:
    """The captions of blocks of embeddings, by inverted list."""

    def __init__(self, blocks: Sequence[EmbeddedBlock], work: ArrayFolder) -> None:
        """Open what `build` has made in the folder `work`."""
        self._blocks = blocks
        self._centroids = work.load("caption-lists")["centroids"]
        self._files = [work.load(f"caption-rows-{number}") for number in range(len(blocks))]

    @classmethod
    def build(
        cls, blocks: Sequence[EmbeddedBlock], work: ArrayFolder, progress: Progress = SILENT
    ) -> CaptionIndex:
        """Make the index in the folder `work`, as far as it is not there.

        Shards that cannot be read are left out. Raises `InputError` where nothing can be written.
        """
        stages = Stages(work, InProcess(), progress)
        if not stages.has("caption-lists"):
            pairs = sum(_pairs_in(shard) for block in blocks for shard in block.shards)
            lists = nlist_for(pairs) if pairs >= EXACT_BELOW else 1
            share = min(1.0, _SAMPLED_PER_LIST * lists / max(pairs, 1))
            names = stages.run(
                "sampling captions", "sample", _sample, [(block, share) for block in blocks]
            )
            sample = np.concatenate([work.load(name)["text"] for name in names]).astype(np.float32)
            if not len(sample):
                raise InputError("the embeddings hold no usable caption")
            stages.save("caption-lists", centroids=train_lists(sample, lists, _SEED))
            stages.drop("sample-")
        stages.run("indexing captions", "caption-rows", _write, [(block,) for block in blocks])
        return cls(blocks, work)

    def rows_of(self, uid: str) -> list[Row]:
        """The rows of a uid: several where an image has several captions."""
        [digest] = _uid_digests([uid])
        rows: list[Row] = []
        for number, file in enumerate(self._files):
            begin = np.searchsorted(file["uid"], digest)
            end = np.searchsorted(file["uid"], digest, side="right")
            columns = (file[name][begin:end].tolist() for name in ("shard", "row", "uid_caption"))
            rows += [Row(number, *place) for place in zip(*columns, strict=True)]
        return rows

    def image(self, place: Row) -> np.ndarray:
        """The (d,) float32 image vector of a row. Raises `ShardError` where there is none."""
        block = self._blocks[place.block]
        shard, row = block.shards[place.shard], place.row
        layout = LAYOUTS[shard.layout]
        if layout.reads_rows:
            first = (shard.rows[0] if shard.rows else 0) + row
            shard, row = dataclasses.replace(shard, rows=(first, first + 1)), 0
        names = [*layout.columns(block.keys), *SOURCES["uid"]]
        table = read_table(shard.url, names, shard.rows)
        vectors, lengths = layout.read(shard, table, block.keys)[0]
        one = slice(row, row + 1)
        problems: dict[int, tuple[SkipReason, str]] = {}
        unit = unit_vectors(
            vectors[one], "image", None if lengths is None else lengths[one], problems
        )
        if problems or unit.shape[1] != block.dim:
            raise ShardError("the image has no usable vector")
        vector: np.ndarray = unit[0].astype(np.float32)
        return vector

    def nearest(
        self, image: np.ndarray, count: int, without: Collection[int] = ()
    ) -> list[NearCaption]:
        """The captions of the largest cosine with a (d,) image, no text twice.

        `without` are the digests of captions that are left out.
        """
        left_out = set(without)
        candidates: list[tuple[float, int, int]] = []
        for number, file in enumerate(self._files):
            lists = InvertedLists(self._centroids, *(file[name] for name in _LISTED))
            probes, wanted = likely_nprobe(len(self._centroids)), count + len(left_out)
            cosines, rows = lists.search(image[None, :], wanted, probes)
            candidates += zip(cosines[0].tolist(), repeat(number), rows[0].tolist(), strict=False)
        near: list[NearCaption] = []
        for cosine, number, row in sorted(candidates, reverse=True):
            if row < 0 or len(near) == count:
                break
            file = self._files[number]
            digest = int(file["digest"][row])
            if digest in left_out:
                continue
            left_out.add(digest)
            begin, end = file["words_starts"][row : row + 2]
            text = file["words"][begin:end].tobytes().decode("utf-8", "replace")
            near.append(NearCaption(text, cosine))
        return near


def caption_digest(text: str) -> int:
    """Return a digest that captions share if they differ in nothing but case and white space."""
    return int(_short(caption_digests([text]))[0])


def _sample(work: ArrayFolder, number: int, block: EmbeddedBlock, share: float) -> None:
    rng = np.random.default_rng((_SEED, number))
    vectors = [np.empty((0, block.dim), np.float16)]
    for _, pairs in _read(block):
        count = min(len(pairs.text), round(share * len(pairs.text)) + 1)
        chosen = np.sort(rng.choice(len(pairs.text), count, replace=False))
        vectors.append(pairs.text[chosen].astype(np.float16))
    work.save(f"sample-{number}", {"text": np.concatenate(vectors)})


def _write(work: ArrayFolder, number: int, block: EmbeddedBlock) -> None:
    """Write the distinct captions of a block by list, and its rows by uid."""
    centroids = work.load("caption-lists")["centroids"]
    vectors, places = [np.empty((0, block.dim), np.float16)], [np.empty((2, 0), np.int32)]
    captions: list[str | None] = []
    uids: list[str] = []
    for shard, pairs in _read(block):
        usable = np.flatnonzero(pairs.ok)
        facts = pairs.facts.take(pa.array(usable))
        vectors.append(pairs.text.astype(np.float16))
        places.append(np.stack([np.full(len(usable), shard), usable]).astype(np.int32))
        captions += facts["text"].to_pylist()
        uids += facts["uid"].to_pylist()
    digest, uid = _short(caption_digests(captions)), _uid_digests(uids)
    _, first = np.unique(digest, return_index=True)
    first = np.array([row for row in first.tolist() if captions[row] is not None], np.int64)
    lists = nearest_lists(np.concatenate(vectors)[first], centroids, 1)[:, 0]
    order = np.argsort(lists)
    first = first[order]
    words = [(captions[row] or "").encode("utf-8", "replace") for row in first.tolist()]
    by_uid = np.argsort(uid)
    shard_of, row_of = np.concatenate(places, axis=1)[:, by_uid]
    work.save(
        f"caption-rows-{number}",
        {
            "vectors": np.concatenate(vectors)[first],
            "starts": np.searchsorted(lists[order], np.arange(len(centroids) + 1)),
            "ids": np.arange(len(first), dtype=np.int32),
            "words": np.frombuffer(b"".join(words), np.uint8),
            "words_starts": np.cumsum([0, *map(len, words)]),
            "digest": digest[first],
            "uid": uid[by_uid],
            "shard": shard_of,
            "row": row_of,
            "uid_caption": digest[by_uid],
        },
    )


def _read(block: EmbeddedBlock) -> Iterator[tuple[int, EmbeddedPairs]]:
    """The pairs of the shards of a block that can be read, with the number of each shard."""
    for number, shard in enumerate(block.shards):
        try:
            pairs = read_pairs(shard, block.keys, dim=block.dim)
        except ShardError:
            continue
        if pairs.error is None and pairs.ok.any():
            yield number, pairs


def _pairs_in(shard: ShardRef) -> int:
    return shard.rows[1] - shard.rows[0] if shard.rows else 0


def _uid_digests(uids: Sequence[str]) -> np.ndarray:
    return _short(digests(f"{uid}".encode("utf-8", "surrogatepass") for uid in uids))


def _short(hashes: pa.Array) -> np.ndarray:
    """(m,) uint64 halves of m digests: enough to look up one among a corpus."""
    return np.frombuffer(hashes.storage.buffers()[1], np.uint64)[: 2 * len(hashes) : 2]
