"""The samples of a shard of images, whatever layout it has."""

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
    """The samples of a shard of images.

    `opened` gives the stream of a tar opened before. `wanted` are the keys that matter: files and
    members of other samples need not be read, so they may lack an image and have any status; those
    in a tar have their image even if they lack a caption. With `together`,
    samples that differ from the one before in row and key alone may be left out: the keys are its
    `alike`. With `whole`, samples have their `rows`.
    """
    reading = Reading(caption_key, opened, wanted, together, whole)
    return layout_of(shard).samples(shard, reading)
