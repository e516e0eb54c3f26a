"""The tasks of a search on blocks of pairs: one a block, in any order, on any machine.

`read_block` hashes vectors and captions, `sample_block` draws vectors to learn from, `assign_block`
finds the list of each vector and the exact neighbours of a sample. Each writes one file of arrays,
whole or not at all, so that a search that was killed goes on with the blocks that lack theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ncclean.neighbour_search.blocks import IDENTIFIERS, Block
from ncclean.neighbour_search.chunked import chunks
from ncclean.neighbour_search.copies import caption_digests, digests, vector_digests
from ncclean.neighbour_search.inverted_lists import NearestHeap, nearest_lists
from ncclean.neighbour_search.whitening import Whitening
from ncclean.storage.array_files import ArrayFolder, Arrays

SIDES = ("image", "text")


@dataclass(frozen=True)
class Direction:
    """A search of the `index` side with queries of the `query` side."""

    query: str
    index: str

    @property
    def name(self) -> str:
        return f"{self.query}-{self.index}"

    @property
    def is_within(self) -> bool:
        return self.query == self.index


WITHIN = tuple(Direction(side, side) for side in SIDES)
ACROSS = (Direction("image", "text"), Direction("text", "image"))


def read_block(work: ArrayFolder, number: int, block: Block) -> None:
    """Read a block of pairs: hashes of vectors and captions, cosines, identifiers."""
    pairs = block.read()
    sink = pa.BufferOutputStream()
    identifiers = pairs.facts.select(list(IDENTIFIERS))
    with pa.ipc.new_stream(sink, identifiers.schema) as writer:
        writer.write_table(identifiers)
    uids, *sample = (pairs.facts.column(name).to_pylist() for name in ("uid", "shard", "key"))
    samples = zip(*sample, strict=True)
    work.save(
        f"read-{number}",
        {
            "image": vector_digests(pairs.image),
            "text": vector_digests(pairs.text),
            "caption": caption_digests(pairs.facts.column("text").to_pylist()),
            "uid": digests(f"{uid}".encode() for uid in uids),
            "sample": digests("\0".join(map(str, names)).encode() for names in samples),
            "has_captions": np.array([bool(np.any(pairs.facts.column("caption_number")))]),
            "own": pair_cosines(pairs.image, pairs.text),
            "pairs": np.frombuffer(sink.getvalue(), np.uint8),
            "left_out": np.array([pairs.left_out]),
        },
    )


def pair_cosines(image: np.ndarray, text: np.ndarray) -> np.ndarray:
    """(n,) float32 cosines of image and caption of each pair, from (n, d) vectors."""
    cosines = np.empty(len(image), np.float32)
    for rows in chunks(len(image)):
        sides = (side[rows].astype(np.float32) for side in (image, text))
        cosines[rows] = np.einsum("nd,nd->n", *sides)
    return cosines


def pairs_of(read: Arrays) -> pa.Table:
    """Map the identifiers of a block's pairs from its file, without copying them into memory."""
    table: pa.Table = pa.ipc.open_stream(pa.py_buffer(read["pairs"])).read_all()
    return table


def sample_block(work: ArrayFolder, number: int, block: Block) -> None:
    """The block's share of the training sample: vectors of the sampled rows, in order."""
    rows, vectors = work.load("sample-rows"), distinct_vectors(work, number, block)
    sampled = {}
    for side in SIDES:
        begin, end = work.load("bounds")[side][number : number + 2]
        wanted = rows[side][(rows[side] >= begin) & (rows[side] < end)]
        sampled[side] = vectors[side][wanted - begin]
    work.save(f"sample-{number}", sampled)


def assign_block(work: ArrayFolder, number: int, block: Block, k: int) -> None:
    """Assign a block's distinct vectors to their nearest lists; search the sample exactly.

    The (q, k + 1) nearest of a sample of images, of captions and, whitened, of the same side.
    """
    learnt, queries = work.load("learnt"), work.load("queries")
    arrays: Arrays = {}
    for side, vectors in distinct_vectors(work, number, block).items():
        begin = int(work.load("bounds")[side][number])
        space = Whitening.of(learnt, f"{side}_space_")
        whitened = f"{side}_whitened"
        heaps = {name: NearestHeap(queries[name], k + 1) for name in (*SIDES, whitened)}
        for rows in chunks(len(vectors)):
            chunk = vectors[rows].astype(np.float32)
            ids = np.arange(begin + rows.start, begin + rows.stop)
            for name, heap in heaps.items():
                heap.add(space.apply(chunk) if name == whitened else chunk, ids)
        for name, heap in heaps.items():
            nearest = heap.nearest()
            arrays[f"{side}_by_{name}_cosines"] = nearest.cosines
            arrays[f"{side}_by_{name}_ids"] = nearest.ids
        arrays[f"{side}_vectors"] = vectors
        arrays[f"{side}_list"] = nearest_lists(vectors, learnt[f"{side}_lists"], 1)[:, 0]
        if side == "image" and "cluster_lists" in learnt:
            arrays["cluster"] = nearest_lists(vectors, learnt["cluster_lists"], 1)[:, 0]
    work.save(f"assign-{number}", arrays)


def distinct_vectors(work: ArrayFolder, number: int, block: Block) -> dict[str, np.ndarray]:
    """(m, d) float16 vectors of a block, one for each class of equal rows, by side."""
    pairs, rows = block.read(), work.load(f"distinct-{number}")
    return {"image": pairs.image[rows["image"]], "text": pairs.text[rows["text"]]}
