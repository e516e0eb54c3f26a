"""Count the samples of shards cheaply, or estimate them from the first samples of a few."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ncclean.base import stores
from ncclean.base.text_files import parse_json, read_text
from ncclean.data.member_samples import caption_keys
from ncclean.data.nested_fields import without_lines
from ncclean.data.reader import read_samples
from ncclean.data.sample_groups import caption_members
from ncclean.data.samples import CaptionKeys, Sample, SkipReason
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar import LocatedSamples, TarSamples
from ncclean.errors import InputError, ShardError

_AT_ONCE = 8  # parallel requests, mostly waiting for the store


class SampleCounts(NamedTuple):
    """The number of usable samples of each shard by name; `failed` shards end with an error."""

    samples: dict[str, int]
    failed: dict[str, str]


def count_samples(shards: Sequence[ShardRef], caption_key: CaptionKeys = None) -> SampleCounts:
    """Count the usable samples of each shard; of one that breaks off, those before.

    From the `sizes.json` beside it, which `ncclean export` and DataComp write; else from the
    headers of a tar (pairs of image and a caption that `caption_key` names, decodable or not), or
    by reading any other shard.
    """
    folders = {shard.url.rpartition("/")[0] for shard in shards}
    sizes = {f"{folder}/{file}": n for folder in folders for file, n in _sizes(folder).items()}

    failed: dict[str, str] = {}

    def size(shard: ShardRef) -> int:
        stated = sizes.get(shard.url if "/" in shard.url else f"/{shard.url}")
        return stated if stated is not None else _counted(shard, caption_key, failed)

    at_once = _AT_ONCE if any(stores.is_url(shard.url) for shard in shards) else 1
    with ThreadPoolExecutor(at_once) as pool:
        samples = {s.name: n for s, n in zip(shards, pool.map(size, shards), strict=True)}
    return SampleCounts(samples, failed)


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


def _counted(shard: ShardRef, caption_key: CaptionKeys, failed: dict[str, str]) -> int:
    count, named = 0, caption_keys(caption_key)
    try:
        if shard.layout == WEBDATASET:
            for sample in LocatedSamples(shard, named):
                count += _is_pair(sample, named)
        else:
            for sample in read_samples(shard, named):
                count += sample.status is SkipReason.OK
    except (ShardError, OSError) as error:
        failed[shard.name] = str(error)
    return count


def _is_pair(sample: Sample, named: Sequence[str]) -> bool:
    names = (*named, *map(without_lines, named)) or caption_members(sample.picture)
    has_caption = not sample.members.keys().isdisjoint((*names, "json"))
    is_repeat = sample.status is SkipReason.DUPLICATE_KEY
    return sample.picture is not None and has_caption and not is_repeat


_SHARDS_LOOKED_AT = 3
_SAMPLES_LOOKED_AT = 200


def estimate_samples(shards: Sequence[ShardRef]) -> int:
    """Estimate the number of samples from sizes at the start of up to three shards.

    Shards small enough to be read to their end, and those that state their rows, count exactly.
    Unreadable shards count as empty.
    """
    sizes = [shard.rows[1] - shard.rows[0] for shard in shards if shard.rows is not None]
    return sum(sizes) + _estimate([shard for shard in shards if shard.layout == WEBDATASET])


def _estimate(shards: Sequence[ShardRef]) -> int:
    looked_at = shards[:: max(1, len(shards) // _SHARDS_LOOKED_AT)][:_SHARDS_LOOKED_AT]
    samples = 0
    size = 0
    for shard in looked_at:
        seen, covered = _look(shard)
        samples += seen
        size += covered
    if not samples:
        return 0
    return round(sum(shard.size for shard in shards) * samples / size)


def _look(shard: ShardRef) -> tuple[int, int]:
    """Return the samples seen at the start of a shard and the bytes they represent."""
    reader = TarSamples(shard)
    try:
        samples = list(itertools.islice(reader, _SAMPLES_LOOKED_AT + 1))
    except ShardError as error:
        return error.samples, shard.size
    if len(samples) <= _SAMPLES_LOOKED_AT:
        return len(samples), shard.size
    return reader.samples, reader.bytes_read
