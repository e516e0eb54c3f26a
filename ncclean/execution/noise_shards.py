"""One shard of a noise injection, written and published: what a process does."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
from collections import Counter
from collections.abc import Iterator
from typing import IO, cast

import pyarrow as pa
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.data.captions import error_of
from ncclean.data.images.as_tar import open_as_tar
from ncclean.data.inject import SampleEdit, write_noisy
from ncclean.data.shard_index import is_first, pairs_of, samples_in
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar_ranges import RangeWriter, local_tar
from ncclean.errors import ShardError
from ncclean.storage.injection import ShardRecord


def write_shard(
    shard: ShardRef,
    index: pa.Table,
    edits: dict[int, SampleEdit],
    unchanged: dict[str, int],
    target: str,
    caption_key: str | None,
) -> ShardRecord | str:
    """Write and publish a shard with noise; returns a sentence if its bytes cannot be read.

    Of its index the columns `FACTS` are needed.
    """
    pairs = pairs_of(index)["row"].to_numpy()
    rows = pairs[is_first(pairs)].tolist()
    try:
        with (
            published(stores.location(target)) as aside,
            _local(shard, caption_key) as source,
            aside.open("wb") as file,
            _compressing(file, target) as sink,
        ):
            rewritten = write_noisy(source, shard, rows, edits, sink, caption_key)
    except ShardError as error:
        return str(error)
    return ShardRecord(
        samples=samples_in(index),
        pairs=len(pairs),
        noisy=dict(Counter(kind for edit in edits.values() for kind in edit.kinds if kind)),
        unchanged=unchanged,
        error=error_of(index),
        **dataclasses.asdict(rewritten),
    )


def _local(
    shard: ShardRef, caption_key: str | None
) -> contextlib.AbstractContextManager[IO[bytes]]:
    is_remote = shard.layout == WEBDATASET and stores.is_url(shard.url)
    return local_tar(functools.partial(open_as_tar, shard, caption_key), is_remote, [])


@contextlib.contextmanager
def _compressing(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """A sink that compresses if the name says so; the same bytes whenever it is written."""
    if not name.endswith((".gz", ".tgz")):
        yield file
        return
    with gzip.GzipFile("", "wb", 6, file, mtime=0) as sink:
        yield cast(IO[bytes], sink)


def pack_images(shard: ShardRef, caption_key: str | None, images: pa.Table, target: UPath) -> None:
    """Copy images of a compressed shard, which has no random access, to a file of their own."""
    with published(target) as aside, _local(shard, caption_key) as source, aside.open("wb") as sink:
        out = RangeWriter(sink)
        out.read_from(source)
        for image in images.to_pylist():
            out.copy(image["begin"], image["end"])
        out.flush()
