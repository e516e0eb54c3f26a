"""The columns of a selection file, and a selection as loaders see it. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ncclean.data.options import Captions

COLUMNS = ("uid", "shard", "key", "weight", "split")
# For images with several captions: which caption, and its rank among the image's kept ones, 0 the
# best.
CAPTION_NUMBER, CAPTION_RANK = "caption_number", "caption_rank"
MENDED = "caption"  # replaces the pair's caption, null to keep it
IMAGE_SIZE = "image_size"
FORGET, RETAIN = "forget", "retain"


@dataclass(frozen=True)
class SelectedSample:
    """A pair of a selection: its weight, and whether it is in the forget set.

    `caption` is the number of its caption, None if images have only one; `text` replaces the
    caption, None to keep it. `image_size` is the scored image's, None if unknown.
    """

    uid: str
    weight: float
    is_forget: bool
    caption: int | None = None
    text: str | None = None
    image_size: int | None = None

    @property
    def pair_name(self) -> str:
        """Return the uid of a pair, with the caption's number unless that is 0."""
        return f"{self.uid}/{self.caption}" if self.caption else self.uid


class Selection(Protocol):
    """A selection of pairs as loaders read it, whether it is in a file or in memory."""

    @property
    def captions(self) -> Captions:
        """Whether to train on all captions of a selected image, the best, or a random one."""
        ...

    def counts(self) -> dict[str, int]:
        """Return the number of selected samples by shard."""
        ...

    def samples(self, shard: str) -> dict[str, list[SelectedSample]]:
        """Return the selected pairs of one shard by key, the best caption of an image first."""
        ...


def not_captions(selection: str, kind: object) -> str:
    """Return the error for a selection whose mended captions are not text."""
    return (
        f"{selection}: its column {MENDED} is of type {kind}, but must be text, for it replaces "
        "captions; rename it if it is something else"
    )


def not_weights(selection: str) -> str:
    """Return the error for a selection with a weight that is negative or not finite."""
    return f"{selection}: its column weight has a value that is negative or not a finite number"
