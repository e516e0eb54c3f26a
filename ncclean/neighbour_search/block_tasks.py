"""The tasks of a search on blocks of pairs: one a block, in any order, on any machine.

`read_block` hashes vectors and captions, `sample_block` draws vectors to learn from, `assign_block`
finds the list of each vector and the exact neighbours of a sample, `write_lists` writes the vectors
by list and tells which lists are searched for each. Each writes one file of arrays, whole or not at
all, so that a search that was killed goes on with the blocks that lack theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ncclean.neighbour_search.blocks import IDENTIFIERS, Block
from ncclean.neighbour_search.chunked import chunks
from ncclean.neighbour_search.coarse_quantizer import CoarseQuantizer
from ncclean.neighbour_search.copies import caption_digests, digests, vector_digests
from ncclean.neighbour_search.knn import Heaps, Nearest, order_of
from ncclean.neighbour_search.list_scanner import ListScanner
from ncclean.neighbour_search.matmul import fastest_matmul, to_float32
from ncclean.neighbour_search.whitening import Whitening
from ncclean.storage.array_files import ArrayFolder, Arrays

SIDES = ("image", "text")
# Lists that a search probes: a recall of .95 took up to 18 of 2,048, 33 of 4,096.
_LIKELY_NPROBE, _SHARE_VISITED = 32, 1 / 96
MAX_NPROBE = 256  # with any recall
_FIRST_ROWS = 256  # or a few times the neighbours asked for


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
        begin, end = range_of(work, side, number)
        wanted = rows[side][(rows[side] >= begin) & (rows[side] < end)]
        sampled[side] = vectors[side][wanted - begin]
    work.save(f"sample-{number}", sampled)


def assign_block(work: ArrayFolder, number: int, block: Block, k: int) -> None:
    """Assign a block's distinct vectors to their nearest lists; search the sample exactly."""
    learnt, queries = work.load("learnt"), work.load("queries")
    vectors = distinct_vectors(work, number, block)
    clusters = CoarseQuantizer.of(learnt, "cluster_") if "cluster_lists" in learnt else None
    arrays: Arrays = {}
    for side in SIDES:
        quantizer = CoarseQuantizer.of(learnt, f"{side}_")
        space = Whitening.of(learnt, f"{side}_space_")
        own = vectors[side]
        begin, _ = range_of(work, side, number)
        lengths = np.empty(len(own), np.float32)
        whitened = f"{side}_whitened"
        for name in (*SIDES, whitened):
            exact = SampleSearch(np.asarray(queries[name]), min(k + 1, len(own)), len(own))
            for rows in _growing_chunks(len(own), k):
                chunk = to_float32(own[rows], "block in float32")
                if name == whitened:
                    chunk, lengths[rows] = space.unit_and_length(chunk)
                exact.add(chunk, begin + rows.start)
            nearest = exact.nearest()
            arrays |= {
                f"{side}_by_{name}_cosines": nearest.cosines, f"{side}_by_{name}_ids": nearest.ids
            }  # fmt: skip
        probed = quantizer.assign(own, likely_nprobe(len(quantizer)))
        arrays |= {
            f"{side}_probed": probed.astype(np.uint16 if len(quantizer) <= 1 << 16 else np.int32),
            f"{side}_length": lengths,
            f"{side}_list": probed[:, 0],
        }
        if clusters is not None and side == "image":
            arrays["cluster"] = clusters.assign(own, 1)[:, 0]
    work.save(f"assign-{number}", arrays)


def _growing_chunks(count: int, k: int) -> Iterator[slice]:
    """Consecutive slices of rows: of the first ones all are taken, of later ones what is nearer."""
    first = min(max(_FIRST_ROWS, 4 * k), count)
    yield slice(0, first)
    for rows in chunks(count - first):
        yield slice(first + rows.start, first + rows.stop)


def likely_nprobe(lists: int) -> int:
    """An upper estimate of nprobe, the number of lists to keep for each vector."""
    return min(MAX_NPROBE, max(_LIKELY_NPROBE, round(_SHARE_VISITED * lists)))


class SampleSearch:
    """The k nearest of (q, d) queries among `count` rows that come chunk by chunk."""

    def __init__(self, queries: np.ndarray, k: int, count: int) -> None:
        self._asked, self._k = np.arange(len(queries)), k
        take = functools.partial(np.take, queries, axis=0)
        self._products = ListScanner(take, fastest_matmul(len(queries) * count))
        self._best = Heaps.empty(len(queries), max(k, 1))

    def add(self, rows: np.ndarray, first: int) -> None:
        """Compare the sample with (r, d) rows of the corpus, whose ids begin at `first`."""
        ids = np.arange(first, first + len(rows), dtype=np.int32)
        self._products.set_list(rows)
        reached = self._products.range_search(self._asked, self._best.thresholds(self._asked))
        self._best.add(self._asked, reached, ids)

    def nearest(self) -> Nearest:
        """The exact nearest neighbours of the sampled rows so far."""
        best = self._best.nearest()
        return Nearest(best.cosines[:, : self._k], best.ids[:, : self._k])


def write_lists(
    work: ArrayFolder, number: int, block: Block, nprobe: dict[str, int], is_exact: bool
) -> None:
    """Write a block's distinct vectors by inverted list, and the queries that probe each list.

    `probes` are the lists that a query visits, by direction. Where the search `is_exact` it visits
    all, its own first.
    """
    learnt, vectors = work.load("learnt"), distinct_vectors(work, number, block)
    arrays: Arrays = {}
    for side in SIDES:
        begin, _ = range_of(work, side, number)
        own = vectors[side]
        ids = np.arange(begin, begin + len(own), dtype=np.int32)
        nearest_lists = work.load(f"assign-{number}")[f"{side}_probed"]
        assigned = work.load(f"assign-{number}")[f"{side}_list"]
        lists = len(CoarseQuantizer.of(learnt, f"{side}_"))
        order = order_of(assigned, lists)
        place = np.empty(len(own), np.int32)
        place[order] = np.arange(len(own), dtype=np.int32)
        arrays |= {
            f"{side}_vectors": own[order],
            f"{side}_ids": ids[order],
            f"{side}_starts": starts_of(assigned, lists),
            f"{side}_place": place,
        }
        for direction in (*WITHIN, *ACROSS):
            if direction.query != side or direction.name not in nprobe:
                continue
            quantizer = CoarseQuantizer.of(learnt, f"{direction.index}_")
            if is_exact:
                probed = _all_lists(assigned, len(quantizer))
            elif direction.is_within and nprobe[direction.name] <= nearest_lists.shape[1]:
                probed = nearest_lists[:, : nprobe[direction.name]].astype(np.int32)
            else:
                probed = quantizer.assign(own, nprobe[direction.name])
                if direction.is_within:
                    _own_list_first(probed, assigned)
            arrays |= _by_list(direction, ids, probed, len(quantizer))
    work.save(f"lists-{number}", arrays)


def _all_lists(assigned: np.ndarray, lists: int) -> np.ndarray:
    """All lists for each row, its own first."""
    others = np.arange(lists - 1, dtype=np.int32)
    first = assigned[:, None]
    return np.concatenate([first, others + (others >= first)], axis=1)


def _own_list_first(probed: np.ndarray, assigned: np.ndarray) -> None:
    """Let each route begin with the row's own list.

    It does but for rounding, where the machine that assigned the row was another one.
    """
    for row in np.flatnonzero(probed[:, 0] != assigned):
        others = probed[row][probed[row] != assigned[row]]
        probed[row, 0], probed[row, 1:] = assigned[row], others[: probed.shape[1] - 1]


def _by_list(
    direction: Direction, ids: np.ndarray, probed: np.ndarray, lists: int
) -> dict[str, np.ndarray]:
    """The queries of each list in the order of their ids; which of their lists it is, from 0."""
    order = order_of(probed.ravel(), lists)
    width = max(probed.shape[1], 1)
    row = order // width
    name = direction.name
    return {
        f"{name}_queries": ids[row],
        f"{name}_rank": (order - row * width).astype(np.uint8),
        f"{name}_starts": starts_of(probed.ravel(), lists),
        f"{name}_first": probed[:, 0],
    }


def starts_of(lists: np.ndarray, count: int) -> np.ndarray:
    """(count + 1,) offsets at which each inverted list begins among rows sorted by list."""
    return np.concatenate([[0], np.cumsum(np.bincount(lists, minlength=count))])


def distinct_vectors(work: ArrayFolder, number: int, block: Block) -> dict[str, np.ndarray]:
    """(m, d) float16 vectors of a block, one for each class of equal rows, by side."""
    pairs, rows = block.read(), work.load(f"distinct-{number}")
    return {"image": pairs.image[rows["image"]], "text": pairs.text[rows["text"]]}


def range_of(work: ArrayFolder, side: str, number: int) -> tuple[int, int]:
    """The range of ids of a block's distinct rows, its end exclusive."""
    bounds = work.load("bounds")[side]
    return int(bounds[number]), int(bounds[number + 1])
