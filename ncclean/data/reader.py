"""Read the samples of a shard of images, in any layout."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import BinaryIO

from ncclean.data.images.layout import Reading, Samples
from ncclean.data.images.registry import layout_of
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import ShardRef


def read_samples(
    shard: ShardRef,
    caption_key: CaptionKeys = None,
    opened: Callable[[], BinaryIO] | None = None,
    wanted: Collection[str] | None = None,
    together: bool = False,
    whole: bool = False,
) -> Samples:
    """Return the samples of a shard of images.

    `opened` gives the stream of an already opened tar. `wanted` are the keys that matter: files and
    members of other samples need not be read, so they may lack an image and have any status; wanted
    ones in a tar have their image even without a caption. With `together`, samples that differ from
    the previous one only in row and key may be omitted: their keys are its `alike`. With `whole`,
    samples have their `rows`.
    """
    reading = Reading(caption_key, opened, wanted, together, whole)
    return layout_of(shard).samples(shard, reading)
