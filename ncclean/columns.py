"""Add your own columns to the score table: `ncclean score --columns package.module:function`.

A function receives the pairs of a batch and returns values for each:

    import pyarrow as pa
    from ncclean.columns import PairBatch, columns

    @columns(words=pa.int32(), brightest=pa.float32())
    def simple(batch: PairBatch):
        brightest = batch.pixels.flatten(1).max(dim=1).values / 255
        return {"words": [len(text.split()) for text in batch.captions], "brightest": brightest}
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

if TYPE_CHECKING:  # declaring columns needs no torch
    import torch

_ATTRIBUTE = "ncclean_columns"


@dataclass(frozen=True)
class PairBatch:
    """n scorable pairs.

    `captions` are n texts, `image` their images' float32 (n, d) embeddings of length 1, on the
    device of the model. `pixels` are uint8 (n, 3, H, W), the crops that the model sees; None if
    embeddings are scored. `metadata` has the fields of each pair's json, or the further columns of
    its table.
    """

    captions: Sequence[str]
    image: torch.Tensor
    pixels: torch.Tensor | None
    metadata: Sequence[Mapping[str, Any]]
    encode_text: Callable[[], torch.Tensor]

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def text(self) -> torch.Tensor:
        """Float32 (n, d) L2-normalised embeddings of the captions, encoded on first use."""
        return self.encode_text()

    def only(self, row: int) -> PairBatch:
        """Return a batch of only the pair at this place."""
        return PairBatch(
            self.captions[row : row + 1],
            self.image[row : row + 1],
            None if self.pixels is None else self.pixels[row : row + 1],
            self.metadata[row : row + 1],
            lambda: self.encode_text()[row : row + 1],
        )


ColumnValues = Mapping[str, Any]
ColumnFunction = Callable[[PairBatch], ColumnValues]
F = TypeVar("F", bound=ColumnFunction)


@dataclass(frozen=True)
class Declared:
    """The columns and the version that a function of `--columns` declares."""

    types: Mapping[str, pa.DataType]
    version: str


def columns(version: str | None = None, **types: pa.DataType) -> Callable[[F], F]:
    """Declare names and Arrow types of the columns that a user's function computes.

    The function takes a `PairBatch` and returns n values for each name: an Arrow or numpy array, a
    tensor, or a list with None for missing values. It must not depend on which pairs are in one
    batch. `version` is part of a run's identity, so that no run mixes values of two functions. By
    default it is a digest of the function's file; if you state one, change it with the function.
    """

    def mark(function: F) -> F:
        declared = Declared(dict(types), _file_digest(function) if version is None else version)
        setattr(function, _ATTRIBUTE, declared)
        return function

    return mark


def _file_digest(function: Callable[..., Any]) -> str:
    """Digest of the file that a function is being imported from; "1" if there is none."""
    try:
        source = Path(function.__code__.co_filename).read_bytes()
    except (AttributeError, OSError):
        return "1"
    return hashlib.blake2b(source, digest_size=8).hexdigest()


def declared_columns(function: object) -> Declared | None:
    """The declaration that the decorator `columns` attached to a function, None without one."""
    return getattr(function, _ATTRIBUTE, None)
