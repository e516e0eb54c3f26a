"""How many samples a shard has, as cheaply as can be told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ncclean import stores
from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef
from ncclean.data.tar import IMAGE_EXTENSIONS, TarSamples
from ncclean.data.tar_index import SampleSpan, sample_spans
from ncclean.errors import ShardError


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
        known = sizes[folder].get(file)
        counts[shard.name] = known if known is not None else _counted(shard)
    return counts


def _sizes(folder: str) -> dict[str, int]:
    place = stores.location(folder or ".") / "sizes.json"
    if not stores.ask("read", place, place.exists):
        return {}
    try:
        found = json.loads(stores.read_bytes(place))
    except ValueError:
        return {}
    return {name: count for name, count in found.items() if isinstance(count, int)}


def _counted(shard: ShardRef) -> int:
    try:
        if not stores.is_url(shard.url) and shard.url.endswith(".tar"):
            return sum(map(_is_pair, sample_spans(Path(shard.url))))
        return sum(sample.status is SkipReason.OK for sample in TarSamples(shard))
    except ShardError as error:
        return error.samples


def _is_pair(span: SampleSpan) -> bool:
    extensions = {member.extension for member in span.members}
    has_image = any(each.rsplit(".", 1)[-1] in IMAGE_EXTENSIONS for each in extensions)
    return has_image and bool(extensions & {"txt", "caption", "json"})
