"""Read the pairs of a corpus once: their identity, their cosines, and repeated vectors.

The web repeats captions thousands of times. A search over all rows would return only copies, so
searches run over distinct rows, and a hash finds every copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ncclean.data.fingerprints import concatenated
from ncclean.errors import InputError
from ncclean.neighbour_search.blocks import IDENTIFIERS, EmbeddedBlock
from ncclean.neighbour_search.stages import VALUES, DisjointSets, Stages, chunks
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


@dataclass(frozen=True)
class Distinct:
    """A partition of n rows into u classes of equal ones, numbered by first occurrence.

    `labels` (n,) is the class of each row, `first` (u,) the first row of each class, `members`
    (n,) all rows sorted by class and then by row, `starts` (u + 1,) where each class begins there,
    `positions` (n,) the place of each row among the members of its class, from 0.
    """

    labels: np.ndarray
    first: np.ndarray
    members: np.ndarray
    starts: np.ndarray
    positions: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def load(cls, work: ArrayFolder, side: str) -> Distinct:
        """The classes of equal images or captions."""
        return cls(**work.load(f"classes-{side}"), members=work.load(f"members-{side}")["row"])

    def rows_of(self, classes: np.ndarray) -> np.ndarray:
        """All rows of (m,) classes, class by class."""
        starts, ends = self.starts[classes], self.starts[classes + 1]
        sizes = ends - starts
        offsets = np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
        rows: np.ndarray = self.members[np.arange(len(offsets)) + offsets]
        return rows


@dataclass(frozen=True)
class Corpus:
    """The n pairs read: mapped identifiers, `own` (n,) cosines and distinct rows by side."""

    pairs: pa.Table
    own: np.ndarray
    distinct: dict[str, Distinct]
    dim: int
    starts: list[int]
    left_out: int

    def __len__(self) -> int:
        return len(self.own)

    def width(self, direction: Direction, k: int) -> int:
        """Number of neighbours to look for: k, or fewer in a tiny corpus."""
        return max(1, min(k, len(self.distinct[direction.index]) - direction.is_within))


def read_corpus(stages: Stages, blocks: Sequence[EmbeddedBlock]) -> Corpus:
    """Read every block of the corpus and find the classes of equal rows.

    Captions are equal if they or their vectors are.
    """
    names = stages.run("reading embeddings", "read", read_block, [(block,) for block in blocks])
    files = [stages.work.load(name) for name in names]
    tables = [pa.ipc.open_stream(pa.py_buffer(file["pairs"])).read_all() for file in files]
    pairs = concatenated(tables)
    if not len(pairs):
        raise InputError("the embeddings hold no usable pair")
    stages.progress.say("looking for copies")
    own = stages.select("own", "SELECT own FROM numbered ORDER BY row", own=pairs["own"])["own"]
    write_classes(stages, pairs, "image", ["image"])
    write_classes(stages, pairs, "text", ["text", "coalesce(caption, text)"])
    return Corpus(
        pairs,
        own,
        {side: Distinct.load(stages.work, side) for side in SIDES},
        blocks[0].dim,
        np.cumsum([0, *map(len, tables)]).tolist(),
        sum(int(file["left_out"][0]) for file in files),
    )


def write_classes(stages: Stages, pairs: pa.Table, side: str, keys: Sequence[str]) -> None:
    """Write which pairs are equal: those that share any of several keys."""
    if stages.has(f"classes-{side}"):
        return
    count = len(pairs)
    digests = {name: pairs[name] for name in ("image", "text", "caption")}
    shape = (count,), np.int32
    with stages.work.scratch({"first": shape, "parent": shape}) as scratch:
        sets = DisjointSets(parent := scratch["parent"])
        for key in keys:
            stages.first_rows(key, scratch["first"], **digests)
            for rows in chunks(count, VALUES):
                sets.join(np.arange(rows.start, rows.stop), scratch["first"][rows])
        sets.finish()
        query = "SELECT row FROM numbered ORDER BY parent, row"
        members = stages.select(f"members-{side}", query, parent=parent)["row"]
        classes = sum(
            int(np.count_nonzero(parent[rows] == np.arange(rows.start, rows.stop)))
            for rows in chunks(count, VALUES)
        )
        shapes = {
            "labels": ((count,), np.int32), "first": ((classes,), np.int32),
            "starts": ((classes + 1,), np.int64), "positions": ((count,), np.int32),
        }  # fmt: skip
        with stages.writing(f"classes-{side}", shapes) as arrays:
            label = -1  # of the last row so far
            for places in chunks(count, VALUES):
                some, numbers = members[places], np.arange(places.start, places.stop)
                is_first = parent[some] == some
                labels = label + np.cumsum(is_first)
                arrays["first"][labels[is_first]] = some[is_first]
                arrays["starts"][labels[is_first]] = numbers[is_first]
                arrays["labels"][some] = labels
                arrays["positions"][some] = numbers - arrays["starts"][labels]
                label = int(labels[-1])
            arrays["starts"][-1] = count


def read_block(work: ArrayFolder, number: int, block: EmbeddedBlock) -> None:
    """Read a block of pairs: identifiers, cosines, hashes of vectors and captions."""
    read = block.read()
    pairs = read.facts.select(list(IDENTIFIERS))
    columns = {
        "image": vector_digests(read.image), "text": vector_digests(read.text),
        "caption": caption_digests(read.facts.column("text").to_pylist()),
        "own": pair_cosines(read.image, read.text),
    }  # fmt: skip
    for name, values in columns.items():
        pairs = pairs.append_column(name, pa.array(values))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pairs.schema) as writer:
        writer.write_table(pairs)
    arrays = {"pairs": np.frombuffer(sink.getvalue(), np.uint8)}
    work.save(f"read-{number}", arrays | {"left_out": np.array([read.left_out])})


def pair_cosines(image: np.ndarray, text: np.ndarray) -> np.ndarray:
    """(n,) float32 cosines of image and caption of each pair, from (n, d) vectors."""
    cosines = np.empty(len(image), np.float32)
    for rows in chunks(len(image)):
        sides = (side[rows].astype(np.float32) for side in (image, text))
        cosines[rows] = np.einsum("nd,nd->n", *sides)
    return cosines


def vector_digests(vectors: np.ndarray) -> pa.Array:
    """Hash (m, d) float16 rows to 128 bits each."""
    return digests(row.tobytes() for row in np.ascontiguousarray(vectors))


def caption_digests(captions: Iterable[str | None]) -> pa.Array:
    """Hash captions to 128 bits each; null for a missing caption.

    Captions are compared as CLIP's tokenizer sees them, in lower case with collapsed white space:
    their embeddings differ only by rounding, which depends on their batch.
    """
    return digests(
        None if caption is None else b"c" + " ".join(caption.lower().split()).encode()
        for caption in captions
    )


def digests(contents: Iterable[bytes | None]) -> pa.Array:
    """Hash texts to 128 bits each, as UUIDs, which DuckDB sorts as numbers; null for None."""
    hashes = [
        None if content is None else hashlib.blake2b(content, digest_size=16).digest()
        for content in contents
    ]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(hashes, pa.binary(16)))


def distinct_vectors(
    work: ArrayFolder, block: EmbeddedBlock, start: int
) -> dict[str, tuple[int, np.ndarray]]:
    """Return, by side, (m, d) float16 vectors of a block, one per class that begins in it.

    Also returns the first such class. `start` is the number of the block's first pair.
    """
    read, vectors = block.read(), {}
    for side, rows in (("image", read.image), ("text", read.text)):
        first = work.load(f"classes-{side}")["first"]
        # Another type would copy the rows into memory.
        begin, end = np.searchsorted(first, np.array([start, start + len(rows)], np.int32))
        vectors[side] = int(begin), rows[first[begin:end] - start]
    return vectors


def pair_groups(stages: Stages, corpus: Corpus) -> Arrays:
    """Return (n,) near-duplicate groups by image, by text and by both, named by their first pair.

    `image_size`, `text_size` and `pair_size` are the numbers of pairs in each pair's group;
    `images` counts images: captions of one image, whose first pair is `same_image`, are not
    near-duplicates.
    """
    if stages.has("pair-groups"):
        return stages.work.load("pair-groups")
    names = (*SIDES, "pair", "same_image", "image_size", "text_size", "pair_size", "images")
    shapes = dict.fromkeys(names, ((len(corpus),), np.int32))
    with stages.writing("pair-groups", shapes) as groups:
        for side, classes in corpus.distinct.items():
            representative = stages.work.load(f"groups-{side}")["representative"]
            for rows in chunks(len(corpus), VALUES):
                groups[side][rows] = classes.first[representative[classes.labels[rows]]]
        sides = {side: groups[side] for side in SIDES}
        for name, by in (("image", "image"), ("text", "text"), ("pair", "(image, text)")):
            stages.first_rows(by, groups[name], groups[f"{name}_size"], **sides)
        samples = {name: corpus.pairs[name] for name in IDENTIFIERS}
        if pyarrow.compute.max(samples["caption_number"]).as_py():
            stages.first_rows("(uid, shard, key)", groups["same_image"], **samples)
        else:
            stages.first_rows("row", groups["same_image"], **samples)
        for rows in chunks(len(corpus), VALUES):
            is_first = groups["same_image"][rows] == np.arange(rows.start, rows.stop)
            firsts, images = np.unique(groups["image"][rows][is_first], return_counts=True)
            groups["images"][firsts] += images.astype(np.int32)
        for rows in chunks(len(corpus), VALUES):
            groups["images"][rows] = groups["images"][groups["image"][rows]]
    return stages.work.load("pair-groups")


def repeated_uids(stages: Stages, corpus: Corpus) -> int:
    """Count the pairs whose uid and caption number an earlier pair has."""
    with stages.work.scratch({"first": ((len(corpus),), np.int32)}) as scratch:
        first = scratch["first"]
        named = {name: corpus.pairs[name] for name in ("uid", "caption_number")}
        stages.first_rows("row(uid, caption_number)", first, **named)
        return sum(
            int(np.count_nonzero(first[rows] != np.arange(rows.start, rows.stop)))
            for rows in chunks(len(corpus), VALUES)
        )
