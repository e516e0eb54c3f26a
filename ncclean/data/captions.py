"""Read the captions of a shard of any layout, and chosen captions of a corpus by number."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ncclean.data.embeddings.facts import SOURCES, facts_of
from ncclean.data.embeddings.units import LAYOUTS
from ncclean.data.images.folders import Folder, entries_of
from ncclean.data.images.registry import has_rows, layout_of
from ncclean.data.images.tables import TableLayout
from ncclean.data.member_samples import caption_keys
from ncclean.data.parquet_table import read_table
from ncclean.data.reader import read_samples
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import ShardRef
from ncclean.data.tar import TarSamples
from ncclean.errors import InputError, ShardError


@dataclass(frozen=True)
class ChosenCaptions:
    """K captions of a corpus: `texts` (K,), and their sorted `numbers` (K,) in the corpus."""

    numbers: np.ndarray
    texts: pa.LargeStringArray

    @classmethod
    def among(cls, shards: Iterable[pa.ChunkedArray], numbers: np.ndarray) -> ChosenCaptions:
        """Collect the captions with these numbers from the captions of all shards, in order."""
        chosen = [pa.array([], pa.large_string())]
        start = 0
        for texts in shards:
            first, last = np.searchsorted(numbers, [start, start + len(texts)])
            chosen += texts.take(numbers[first:last] - start).chunks
            start += len(texts)
        return cls(numbers, pa.concat_arrays(chosen))

    def of(self, number: int) -> str:
        text: str = self.texts[int(np.searchsorted(self.numbers, number))].as_py()
        return text


def read_captions(shard: ShardRef, caption_key: str | None = None) -> pa.Table:
    """Read all captions of each sample, in input order, as the column `text`.

    No image is decoded; of a table of paths or embeddings, only the rows are read. A truncated
    shard has the captions before the cut, see `error_of`. Raises `InputError` if it cannot be read
    for a reason that is not in its bytes.
    """
    texts: list[str] = []
    error = ""
    try:
        for text in read_texts(shard, caption_key):
            texts.append(text)
    except ShardError as broken:
        check_is_of_the_bytes(shard, broken)
        error = str(broken)
    return pa.table({"text": pa.array(texts, pa.large_string())}, metadata={"error": error})


def error_of(table: pa.Table) -> str:
    """Return why a shard may have more captions that cannot be read, or ""."""
    return str(table.schema.metadata[b"error"].decode())


def check_is_of_the_bytes(shard: ShardRef, error: ShardError) -> None:
    """Raise `InputError` for an error of reading a shard that its store, not its bytes, causes."""
    cause = error.__cause__
    if isinstance(cause, OSError) and not isinstance(cause, gzip.BadGzipFile):
        raise InputError(f"{shard.url} {error}") from error


def read_texts(shard: ShardRef, caption_key: CaptionKeys = None) -> Iterator[str]:
    """Read the captions of a shard one after the other. Raises `ShardError` like its reader."""
    if shard.layout in LAYOUTS:
        names = caption_keys(caption_key) or SOURCES["text"]
        table = read_table(shard.url, names, shard.rows)
        column = facts_of(table, shard, {"text": names}).column("text")
        yield from (text for text in column.to_pylist() if text and text.strip())
        return
    wanted = () if has_rows(shard) else None  # image files need not be read
    for sample in read_samples(shard, caption_key, wanted=wanted):
        yield from (caption.text for caption in sample.captions if caption.text is not None)


_SAMPLES = 20  # inspected per shard
_MOST_NAMES, _LONGEST_NAME = 20, 60


def names_there(shard: ShardRef) -> list[str]:
    """List names under which captions may be: columns, extensions and fields of the json.

    Inspects the first samples of the shard only; returns none if it cannot be read.
    """
    try:
        names = [name[:_LONGEST_NAME] for name in _names(shard)]
    except ShardError:
        return []
    distinct = list(dict.fromkeys(names))
    more = ["..."] if len(distinct) > _MOST_NAMES else []
    return distinct[:_MOST_NAMES] + more


def _names(shard: ShardRef) -> list[str]:
    layout = layout_of(shard)
    if isinstance(layout, TableLayout):
        columns = layout.columns(shard.url)
        return columns if isinstance(columns, list) else columns.names
    if shard.layout == Folder.name:
        entries = itertools.islice(entries_of(shard.url, shard.span), _SAMPLES)
        extensions = [entry.extension for entry in entries]
        reader = read_samples(shard)
    else:
        extensions = []
        reader = TarSamples(shard)
    samples = list(itertools.islice(reader, _SAMPLES))
    extensions += [extension for sample in samples for extension in sample.members]
    return [*extensions, *(name for sample in samples for name in sample.metadata)]
