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
    """A direction of search: the side of the queries and the one searched, image or text."""

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

    Rows are images or captions. `labels` (n,) is the class of each row, `first` (u,) the first row
    of each class, `members` (n,) all rows sorted by class and then by row, `starts` (u + 1,) where
    each class starts there, `positions` (n,) the place of each row among the members of its class,
    from 0.
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
        """Map the classes of equal images, or captions, from their files."""
        return cls(**work.load(f"classes-{side}"), members=work.load(f"members-{side}")["row"])

    def rows_of(self, classes: np.ndarray) -> np.ndarray:
        """Return all rows of (m,) classes, class by class."""
        starts, ends = self.starts[classes], self.starts[classes + 1]
        sizes = ends - starts
        offsets = np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
        rows: np.ndarray = self.members[np.arange(len(offsets)) + offsets]
        return rows


@dataclass(frozen=True)
class Corpus:
    """A corpus of n pairs, as read for a search: identifiers, cosines and classes of equal vectors.

    `pairs` is a table of the identifiers, `own` (n,) are the pairs' cosines, and `distinct` the
    classes by side. `starts` are the numbers of the blocks' first pairs. `left_out` counts pairs
    without usable vectors.
    """

    pairs: pa.Table
    own: np.ndarray
    distinct: dict[str, Distinct]
    dim: int
    starts: list[int]
    left_out: int

    def __len__(self) -> int:
        return len(self.own)

    def width(self, direction: Direction, k: int) -> int:
        """Return how many neighbours a query has: k, or fewer in a tiny corpus."""
        return max(1, min(k, len(self.distinct[direction.index]) - direction.is_within))


def read_corpus(stages: Stages, blocks: Sequence[EmbeddedBlock]) -> Corpus:
    """Read every block of the corpus, and find the classes of equal images and of equal captions.

    Captions are equal if their texts or their vectors are.
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
    """Find pairs that are equal in any of `keys`; write the classes of a `Distinct` to files."""
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
    """Write the identifiers, cosines and hashes of a block's pairs to a file.

    The hashes are of vectors and of captions.
    """
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
    """Return (n,) float32 cosines of the image and caption of each pair, from (n, d) vectors."""
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
    """Return, by side, a block's vectors that are the first of their class, (m, d) float16.

    With them, the number of the first such class; the others follow. `start` is the number of the
    block's first pair.
    """
    read, vectors = block.read(), {}
    for side, rows in (("image", read.image), ("text", read.text)):
        first = work.load(f"classes-{side}")["first"]
        # Another type would copy the rows into memory.
        start_class, end = np.searchsorted(first, np.array([start, start + len(rows)], np.int32))
        vectors[side] = int(start_class), rows[first[start_class:end] - start]
    return vectors


def pair_groups(stages: Stages, corpus: Corpus) -> Arrays:
    """Return near-duplicate groups of n pairs by image, text and both, named by their first pair.

    `image`, `text` and `pair` (n,) are the groups, `image_size`, `text_size` and `pair_size` (n,)
    their numbers of pairs. `same_image` (n,) is the first pair of the same sample, whose captions
    share an image and are not near-duplicates; `images` (n,) counts an image group's images
    accordingly.
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
    """Count the pairs that repeat the uid and caption number of an earlier pair."""
    with stages.work.scratch({"first": ((len(corpus),), np.int32)}) as scratch:
        first = scratch["first"]
        named = {name: corpus.pairs[name] for name in ("uid", "caption_number")}
        stages.first_rows("row(uid, caption_number)", first, **named)
        return sum(
            int(np.count_nonzero(first[rows] != np.arange(rows.start, rows.stop)))
            for rows in chunks(len(corpus), VALUES)
        )
