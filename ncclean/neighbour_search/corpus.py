"""The pairs of a corpus, read once: who they are, how they match, which vectors are repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ncclean.errors import InputError
from ncclean.neighbour_search.block_tasks import Direction, pairs_of, read_block
from ncclean.neighbour_search.blocks import Block
from ncclean.neighbour_search.chunked import VALUES, Keys, chunks, first_rows
from ncclean.neighbour_search.copies import Distinct, write_classes
from ncclean.neighbour_search.stages import Stages
from ncclean.storage.array_files import Arrays


@dataclass(frozen=True)
class Corpus:
    """The n pairs read: `own` (n,) cosines, distinct rows by side, identifiers. All are mapped.

    `files` are those of `read_block`, `has_captions` tells whether an image has several captions.
    """

    own: np.ndarray
    distinct: dict[str, Distinct]
    pairs: pa.Table
    dim: int
    left_out: int
    files: list[Arrays]
    has_captions: bool

    def __len__(self) -> int:
        return len(self.own)

    def width(self, direction: Direction, k: int) -> int:
        """Number of neighbours to look for: k, or fewer in a tiny corpus."""
        return max(1, min(k, len(self.distinct[direction.index]) - direction.is_within))

    def repeated_uids(self, stages: Stages) -> int:
        """Count the pairs whose uid an earlier pair has."""
        with stages.work.scratch({"first": ((len(self),), np.int32)}) as scratch:
            first = scratch["first"]
            first_rows(stages.work, digests_of(self.files, "uid"), first)
            return sum(
                int(np.count_nonzero(first[rows] != np.arange(rows.start, rows.stop)))
                for rows in chunks(len(self), VALUES)
            )


def read_corpus(stages: Stages, blocks: Sequence[Block]) -> Corpus:
    """Read every block of the corpus and find the classes of equal rows."""
    names = stages.run("reading embeddings", "read", read_block, [(block,) for block in blocks])
    files = [stages.work.load(name) for name in names]
    ends = np.cumsum([0, *(len(file["own"]) for file in files)])
    count = int(ends[-1])
    if not count:
        raise InputError("the embeddings hold no usable pair")
    own = stages.joined("own", names, {"own": "own"})["own"]
    stages.progress.say("looking for copies")
    keys: dict[str, list[Keys]] = {
        "image": [digests_of(files, "image")],
        "text": [digests_of(files, "text"), lambda: _captions(files)],
    }
    distinct = {side: write_classes(stages, f"classes-{side}", keys[side], count) for side in keys}
    at = ends.astype(np.int32)  # of another type, the rows would be copied into memory
    bounds = {side: np.searchsorted(classes.first, at) for side, classes in distinct.items()}
    stages.save("bounds", **bounds)
    for number, first in enumerate(ends[:-1]):
        rows = {
            side: classes.first[bounds[side][number] : bounds[side][number + 1]] - first
            for side, classes in distinct.items()
        }
        stages.save(f"distinct-{number}", **rows)
    return Corpus(
        own,
        distinct,
        pa.concat_tables([pairs_of(file) for file in files]),
        blocks[0].dim,
        sum(int(file["left_out"][0]) for file in files),
        files,
        any(bool(file["has_captions"][0]) for file in files),
    )


def digests_of(files: Sequence[Arrays], name: str) -> Keys:
    """Hashes of one name, such as of images, of all pairs, chunk by chunk."""
    return lambda: (file[name][rows] for file in files for rows in chunks(len(file[name]), VALUES))


def _captions(files: Sequence[Arrays]) -> Iterator[np.ndarray]:
    """The digest of each caption; that of its vector where there is none."""
    for file in files:
        for rows in chunks(len(file["caption"]), VALUES):
            captions = file["caption"][rows]
            has_one = captions.any(axis=1)[:, None]  # type: ignore[index]
            yield np.where(has_one, captions, file["text"][rows])
