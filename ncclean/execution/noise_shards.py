"""One shard of a noise injection, written and published: what a process does."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, cast

import numpy as np
from upath import UPath

from ncclean import stores
from ncclean.atomic import published
from ncclean.data.inject import SampleEdit, write_noisy
from ncclean.data.shard_index import ShardIndex, open_tar
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError
from ncclean.storage.injection import ShardRecord
from ncclean.store_errors import explain


@dataclass(frozen=True)
class WriteTask:
    """One shard to write: everything a process needs to know."""

    shard: ShardRef
    index: ShardIndex
    edits: dict[int, SampleEdit]
    unchanged: dict[str, int]
    target: str
    caption_key: str | None


def write_shard(task: WriteTask) -> ShardRecord | str:
    """Write and publish a shard with noise; returns a sentence if its bytes cannot be read."""
    index = task.index
    try:
        source = open_tar(task.shard, task.caption_key)
    except OSError as error:
        return explain(task.shard.url, error, "read")
    except ValueError as error:  # packed in a way that is not read
        return f"cannot be read: {error}"
    try:
        with (
            source,
            published(stores.location(task.target)) as aside,
            aside.open("wb") as file,
            _compressing(file, task.target) as sink,
        ):
            rewritten = write_noisy(source, index, task.edits, sink, task.caption_key)
    except ShardError as error:
        return str(error)
    return ShardRecord(
        samples=index.samples,
        pairs=index.pairs,
        noisy=dict(Counter(kind for edit in task.edits.values() for kind in edit.kinds if kind)),
        unchanged=task.unchanged,
        error=index.error,
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


def pack_images(shard: ShardRef, caption_key: str | None, spans: np.ndarray, target: UPath) -> None:
    """Copy members of a compressed shard, which has no random access, to a file of their own."""
    # In the order of the shard; rows of interleaved samples need not be in it.
    order = np.argsort(spans[:, 0])
    places = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])
    with (
        published(target) as aside,
        open_tar(shard, caption_key) as source,
        aside.open("wb") as sink,
    ):
        for which in order.tolist():
            begin, end = spans[which].tolist()
            source.seek(begin)
            sink.seek(int(places[which]))
            sink.write(source.read(end - begin))
