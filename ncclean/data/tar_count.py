"""Counts the samples of a shard as cheaply as possible."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ncclean.base import stores
from ncclean.base.text_files import parse_json, read_text
from ncclean.data.reader import read_samples
from ncclean.data.sample_groups import caption_members
from ncclean.data.samples import Sample, SkipReason
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar import LocatedSamples
from ncclean.errors import InputError, ShardError

_AT_ONCE = 8  # of a store, which mostly makes wait


def count_samples(shards: Sequence[ShardRef]) -> dict[str, int]:
    """Usable samples of each shard by name.

    From the `sizes.json` beside it, which `ncclean export` and DataComp write; else from the
    headers of a tar (pairs of image and caption, decodable or not), or by reading what is none.
    """
    folders = {shard.url.rpartition("/")[0] for shard in shards}
    sizes = {f"{folder}/{file}": n for folder in folders for file, n in _sizes(folder).items()}

    def size(shard: ShardRef) -> int:
        stated = sizes.get(shard.url if "/" in shard.url else f"/{shard.url}")
        return stated if stated is not None else _counted(shard)

    at_once = _AT_ONCE if any(stores.is_url(shard.url) for shard in shards) else 1
    with ThreadPoolExecutor(at_once) as pool:
        return {s.name: n for s, n in zip(shards, pool.map(size, shards), strict=True)}


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
    count = 0
    with contextlib.suppress(ShardError, OSError):  # said when it is read
        if shard.layout == WEBDATASET:
            for sample in LocatedSamples(shard):
                count += _is_pair(sample)
        else:
            for sample in read_samples(shard):
                count += sample.status is SkipReason.OK
    return count


def _is_pair(sample: Sample) -> bool:
    names = (*caption_members(sample.picture), "json")
    has_caption = not sample.members.keys().isdisjoint(names)
    is_repeat = sample.status is SkipReason.DUPLICATE_KEY
    return sample.picture is not None and has_caption and not is_repeat
