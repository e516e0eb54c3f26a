"""Index a shard: the captions that its samples list, and the places of their images.

With an index, the noise of a corpus can be planned, captions moved, and any sample's image fetched
by its place, without reading the shards again.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ncclean.data.caption_noise import is_changeable
from ncclean.data.captions import check_is_of_the_bytes
from ncclean.data.images.as_tar import open_as_tar
from ncclean.data.samples import Caption, Sample, SkipReason
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar import TarSamples
from ncclean.data.unpacking import is_packed
from ncclean.errors import ShardError

FACTS = ["row", "number", "changeable"]
IMAGE = ["hash", "begin", "end"]
_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("number", pa.int64()),
        ("text", pa.large_string()),
        ("changeable", pa.bool_()),
        ("hash", pa.uint64()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
    ]
)


def index_shard(shard: ShardRef, caption_key: str | None = None) -> pa.Table:
    """Read a tar once and list its captions, without decoding: a corrupt image counts as one.

    Samples are in the order of their `row`; one without a caption has one row. `number` is a
    caption's index among those that its sample lists. `text` is null if the caption or its sample
    is unusable, as is `changeable`, whether one word of it can be changed. `begin` and `end`
    delimit the sample's image member in the uncompressed shard; `hash` distinguishes images with
    other bytes.

    The index of a truncated shard ends at the cut, see `error_of`. Raises `InputError` if it cannot
    be read at all for a reason that is not in its bytes.
    """
    samples = TarSamples(shard, caption_key, lambda: open_as_tar(shard, caption_key))
    entries: dict[int, list[dict[str, Any]]] = {}
    error = ""
    try:
        for sample in samples:
            entries[sample.row] = _entries(sample)
    except ShardError as broken:
        check_is_of_the_bytes(shard, broken)
        error = str(broken)
    listed = [entry for row in sorted(entries) for entry in entries[row]]
    packed = "packed" if _is_packed(shard) else ""
    schema = _SCHEMA.with_metadata({"error": error, "packed": packed})
    return pa.Table.from_pylist(listed, schema)


def _entries(sample: Sample) -> list[dict[str, Any]]:
    image: dict[str, Any] = {}
    if sample.status is SkipReason.OK:
        member = sample.members[cast(str, sample.picture)]
        digest = hashlib.blake2b(cast(bytes, sample.image), digest_size=8).digest()
        image = {"hash": int.from_bytes(digest, "little"), "begin": member.begin, "end": member.end}
    entries = []
    for caption in sample.captions or [Caption()]:
        entry = {"row": sample.row, "number": caption.number, **image}
        if image and caption.text is not None:
            entry |= {"text": caption.text, "changeable": is_changeable(caption.text)}
        entries.append(entry)
    return entries


def samples_in(index: pa.Table) -> int:
    """Return the number of samples in the index of a shard, scorable or not."""
    return int(index["row"][-1].as_py()) + 1 if len(index) else 0


def pairs_of(index: pa.Table) -> pa.Table:
    """Return the rows of a shard's index that are scorable pairs of an image and a caption."""
    return index.filter(pc.field("changeable").is_valid())


def is_first(rows: np.ndarray) -> np.ndarray:
    """Return (C,) bool: whether a pair is the first of its sample, by the (C,) sorted `rows`."""
    return np.asarray(np.diff(rows, prepend=-1) != 0)


def images_of(pairs: pa.Table) -> pa.Table:
    """Return the columns `IMAGE` of each scorable sample in the index of a shard."""
    return pairs.select(IMAGE).filter(pa.array(is_first(pairs["row"].to_numpy())))


def is_packed_index(index: pa.Table) -> bool:
    """Check whether byte positions in an index refer to the unpacked shard, not its own file."""
    return bool(index.schema.metadata[b"packed"])


def _is_packed(shard: ShardRef) -> bool:
    if shard.layout != WEBDATASET:  # nor can be read from the middle
        return True
    with shard.open() as stream:
        return is_packed(stream)
