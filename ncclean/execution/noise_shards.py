"""One shard of a noise injection, written and published: what a process does."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, cast

import pyarrow as pa
from upath import UPath

from ncclean import stores
from ncclean.atomic import published
from ncclean.data.captions import error_of
from ncclean.data.inject import SampleEdit, write_noisy
from ncclean.data.shard_index import is_first, pairs_of, samples_in
from ncclean.data.shards import ShardRef
from ncclean.data.tar_ranges import RangeWriter, local_tar
from ncclean.errors import ShardError
from ncclean.storage.injection import ShardRecord


@dataclass(frozen=True)
class WriteTask:
    """One shard to write: everything a process needs to know. The index has the columns `FACTS`."""

    shard: ShardRef
    index: pa.Table
    edits: dict[int, SampleEdit]
    unchanged: dict[str, int]
    target: str
    caption_key: str | None


def write_shard(task: WriteTask) -> ShardRecord | str:
    """Write and publish a shard with noise; returns a sentence if its bytes cannot be read."""
    shard, key, pairs = task.shard, task.caption_key, pairs_of(task.index)["row"].to_numpy()
    rows = pairs[is_first(pairs)].tolist()
    try:
        with (
            published(stores.location(task.target)) as aside,
            local_tar(shard, key, []) as source,
            aside.open("wb") as file,
            _compressing(file, task.target) as sink,
        ):
            rewritten = write_noisy(source, shard, rows, task.edits, sink, key)
    except ShardError as error:
        return str(error)
    return ShardRecord(
        samples=samples_in(task.index),
        pairs=len(pairs),
        noisy=dict(Counter(kind for edit in task.edits.values() for kind in edit.kinds if kind)),
        unchanged=task.unchanged,
        error=error_of(task.index),
        **dataclasses.asdict(rewritten),
    )


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
    with (
        published(target) as aside,
        local_tar(shard, caption_key, []) as source,
        aside.open("wb") as sink,
    ):
        out = RangeWriter(sink)
        out.read_from(source)
        for image in images.to_pylist():
            out.copy(image["begin"], image["end"])
        out.flush()
