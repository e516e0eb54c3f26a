"""The samples of a shard, whatever layout it has."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import BinaryIO

from ncclean.data.images.samples import FolderSamples, TableSamples
from ncclean.data.images.unit_files import UnitFiles
from ncclean.data.images.units import FOLDER, is_table
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import ShardRef
from ncclean.data.tar import TarSamples


def read_samples(
    shard: ShardRef,
    caption_key: CaptionKeys = None,
    opened: Callable[[], BinaryIO] | None = None,
    wanted: Collection[str] | None = None,
    together: bool = False,
    whole: bool = False,
) -> FolderSamples | TableSamples | TarSamples:
    """The samples of a shard of images.

    `opened` gives the stream of a tar opened before. `wanted` are the keys that matter: files and
    members of other samples need not be read, so they may lack an image and have any status; those
    in a tar have their image even if they lack a caption. With `together`,
    samples that differ from the one before in row and key alone may be left out: the keys are its
    `alike`. With `whole`, samples have their `rows`.
    """
    if is_table(shard):
        return TableSamples(shard, caption_key, UnitFiles(shard, wanted), together, whole)
    if shard.layout == FOLDER:
        return FolderSamples(shard, caption_key, UnitFiles(shard, wanted), whole)
    return TarSamples(shard, caption_key, opened, whole=whole, wanted=wanted)
