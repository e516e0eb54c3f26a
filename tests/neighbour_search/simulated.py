"""Embeddings with known neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from upath import UPath

from ncclean.neighbour_search.blocks import BlockPairs
from ncclean.neighbour_search.corpus import Distinct
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.search import Neighbours, find_neighbours
from ncclean.runners.runner import InProcess
from ncclean.storage.array_files import ArrayFolder
from ncclean.storage.parts import write_embeddings


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def clustered(count: int, dim: int, seed: int = 0, clusters: int = 50) -> np.ndarray:
    """(count, dim) float16 unit vectors around random centres, inside one cone."""
    rng = np.random.default_rng(seed)
    centres = unit(rng.standard_normal((clusters, dim)))
    spread = 0.6 * unit(rng.standard_normal((count, dim)))
    cone = unit(rng.standard_normal(dim))
    return unit(centres[rng.integers(0, clusters, count)] + spread + cone).astype(np.float16)


def write_clustered(out: Path, rows: int = 6000, dim: int = 24, shards: int = 4) -> Path:
    """The folder, with embeddings of as many pairs; 400 of their images are there twice."""
    image = clustered(rows, dim)
    text = unit(image.astype(np.float32) + 0.5 * clustered(rows, dim, seed=3)).astype(np.float16)
    image[5000:5400] = image[:400]
    for number, chosen in enumerate(np.array_split(np.arange(rows), shards)):
        names = [str(row) for row in chosen]
        table = pa.table({"uid": names, "shard": ["s"] * len(chosen), "key": names})
        write_embeddings(UPath(out), str(number), image[chosen], text[chosen], table)
    return out


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    """All rows and columns, cosines and scores to 1e-5: tasks of other sizes round otherwise."""
    assert found.schema.equals(expected.schema)
    for name in found.column_names:
        one, other = found[name], expected[name]
        if pa.types.is_floating(one.type):
            one, other = (side.to_numpy() for side in (one, other))
            np.testing.assert_allclose(one, other, atol=1e-5, err_msg=name)
        else:
            assert one.equals(other), name


def distinct_of(labels: np.ndarray) -> Distinct:
    """The classes of rows with equal labels, numbered by first occurrence."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(labels.tolist()))}
    classes = np.array([numbers[value] for value in labels.tolist()], np.int32)
    members = np.argsort(classes, kind="stable").astype(np.int32)
    starts = np.searchsorted(classes[members], np.arange(len(numbers) + 1))
    positions = np.empty(len(labels), np.int32)
    positions[members] = np.arange(len(labels)) - starts[classes[members]]
    return Distinct(classes, members[starts[:-1]], members, starts, positions)


@dataclass(frozen=True)
class ArrayBlock:
    """Pairs in memory: (m, d) images and captions, their texts, and captions an image."""

    image: np.ndarray
    text: np.ndarray
    captions: Sequence[str | None] | None = None
    of_image: int = 1

    @property
    def dim(self) -> int:
        return int(self.image.shape[1])

    def read(self) -> BlockPairs:
        count = len(self.image)
        numbers = pa.array([str(row // self.of_image) for row in range(count)])
        facts = pa.table({
            "uid": numbers, "shard": pa.array([""] * count), "key": numbers,
            "caption_number": pa.array(np.arange(count) % self.of_image, pa.int16()),
            "text": pa.array(self.captions or [None] * count, pa.string()),
        })  # fmt: skip
        image, text = (side.astype(np.float16, copy=False) for side in (self.image, self.text))
        return BlockPairs(image, text, facts)


def searched(
    folder: Path,
    blocks: Sequence[ArrayBlock],
    memory_bytes: int = 4 << 30,
    reference: np.ndarray | None = None,
    **options: Any,
) -> tuple[ArrayFolder, Neighbours]:
    """Search blocks in this process; the files of the search, and its results."""
    work = ArrayFolder(str(folder))
    chosen = NeighbourOptions(**options)
    limits = {"memory_bytes": memory_bytes, "reference": reference}
    return work, find_neighbours(blocks, chosen, work, InProcess(), **limits)
