"""Counts the samples of a shard as cheaply as possible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ncclean import stores
from ncclean.data.reader import read_samples
from ncclean.data.sample_groups import CAPTION_EXTENSIONS
from ncclean.data.samples import SkipReason
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar_index import LocatedSample, locate_samples
from ncclean.data.unpacking import is_packed
from ncclean.errors import InputError, ShardError
from ncclean.text_files import parse_json, read_text


def count_samples(shards: Sequence[ShardRef]) -> dict[str, int]:
    """Usable samples of each shard by name.

    From the `sizes.json` beside it, which `ncclean export` and DataComp write; else from the
    headers of an uncompressed local tar (pairs of image and caption, decodable or not); else by
    reading it.
    """
    sizes: dict[str, dict[str, int]] = {}
    counts: dict[str, int] = {}
    for shard in shards:
        folder, _, file = shard.url.rpartition("/")
        if folder not in sizes:
            sizes[folder] = _sizes(folder)
        size = sizes[folder].get(file)
        counts[shard.name] = size if size is not None else _counted(shard)
    return counts


def _sizes(folder: str) -> dict[str, int]:
    place = stores.location(folder or ".") / "sizes.json"
    if not stores.ask("read", place, place.exists):
        return {}
    try:
        sizes = parse_json(read_text(str(place)), place)
    except InputError:
        return {}
    if not isinstance(sizes, dict):
        return {}
    return {name: count for name, count in sizes.items() if isinstance(count, int)}


def _counted(shard: ShardRef) -> int:
    try:
        if shard.layout == WEBDATASET and not stores.is_url(shard.url) and not _is_packed(shard):
            return sum(map(_is_pair, locate_samples(Path(shard.url), image_key=shard.image_key)))
        return sum(sample.status is SkipReason.OK for sample in read_samples(shard))
    except ShardError as error:
        return error.samples
    except OSError:  # said when it is read
        return 0


def _is_packed(shard: ShardRef) -> bool:
    with shard.open() as stream:
        return is_packed(stream)


def _is_pair(sample: LocatedSample) -> bool:
    extensions = sample.members.keys()
    has_caption = not extensions.isdisjoint((*CAPTION_EXTENSIONS, "json"))
    return sample.picture is not None and has_caption
