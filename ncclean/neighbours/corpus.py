"""The pairs of a corpus, read once: who they are, how they match, which vectors are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ncclean.errors import InputError
from ncclean.neighbours.block_tasks import Direction, pairs_of, read_block
from ncclean.neighbours.blocks import Block
from ncclean.neighbours.copies import Distinct, distinct_classes
from ncclean.neighbours.stages import Stages


@dataclass(frozen=True)
class Corpus:
    """The pairs read: `own` (n,) cosines, distinct rows by side, identifiers."""

    own: np.ndarray
    distinct: dict[str, Distinct]
    pairs: pa.Table
    dim: int
    left_out: int

    def width(self, direction: Direction, k: int) -> int:
        """How many neighbours there can be, at most k and at least one."""
        return max(1, min(k, len(self.distinct[direction.index]) - direction.is_within))


def read_corpus(stages: Stages, blocks: Sequence[Block]) -> Corpus:
    """Read every block and tell its repeated rows from distinct ones."""
    names = stages.run("reading embeddings", "read", read_block, [(block,) for block in blocks])
    files = [stages.work.load(name) for name in names]
    ends = np.cumsum([0, *(len(file["own"]) for file in files)])
    if not ends[-1]:
        raise InputError("the embeddings hold no usable pair")
    own = np.concatenate([file["own"] for file in files])
    stages.progress.say("looking for copies")
    hashes = {
        name: np.concatenate([file[name] for file in files])
        for name in ("image", "text", "caption")
    }
    distinct = {
        "image": distinct_classes(hashes["image"]),
        "text": distinct_classes(hashes["text"], hashes["caption"]),
    }
    stages.save("own", own=own)
    bounds = {}
    for side, classes in distinct.items():
        stages.save(
            f"classes-{side}", labels=classes.labels, first=classes.first,
            members=classes.members, starts=classes.starts, positions=classes.positions,
        )  # fmt: skip
        bounds[side] = np.searchsorted(classes.first, ends)
    stages.save("bounds", **bounds)
    for number, first in enumerate(ends[:-1]):
        rows = {
            side: classes.first[bounds[side][number] : bounds[side][number + 1]] - first
            for side, classes in distinct.items()
        }
        stages.save(f"distinct-{number}", **rows)
    pairs = pa.concat_tables([pairs_of(file) for file in files])
    left_out = sum(int(file["left_out"][0]) for file in files)
    return Corpus(own, distinct, pairs, blocks[0].read().image.shape[1], left_out)
