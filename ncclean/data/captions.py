"""Captions of a shard, whatever layout it has, and those of a corpus that are chosen by number."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ncclean.data.embeddings.facts import SOURCES, facts_of
from ncclean.data.embeddings.registry import LAYOUTS
from ncclean.data.images.registry import has_rows
from ncclean.data.member_samples import caption_keys
from ncclean.data.parquet_table import read_table
from ncclean.data.reader import read_samples
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError


@dataclass(frozen=True)
class Captions:
    """n captions: UTF-8 `text`, of which each has the bytes between two of the (n + 1,) `ends`.

    `error` is why there may be more that cannot be read, or "".
    """

    text: np.ndarray
    ends: np.ndarray
    error: str = ""

    @classmethod
    def of(cls, texts: Sequence[str], error: str = "") -> Captions:
        encoded = [text.encode("utf-8", "replace") for text in texts]
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends, error)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def to_bytes(self) -> bytes:
        """Pack the captions of a shard into a compressed npz archive."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, text=self.text, ends=self.ends, error=np.asarray(self.error))
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Captions:
        """Unpack the captions of a shard from an npz archive. Raises `ValueError`."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return cls(arrays["text"], arrays["ends"], arrays["error"].item())
        except (KeyError, OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError("not captions") from error


@dataclass(frozen=True)
class ChosenCaptions:
    """The captions of a corpus with the (K,) sorted `numbers`: bytes and (K + 1,) `ends`."""

    numbers: np.ndarray
    text: np.ndarray
    ends: np.ndarray

    @classmethod
    def among(cls, shards: Iterable[Captions], numbers: np.ndarray) -> ChosenCaptions:
        """Collect chosen captions from the captions of all shards, in order."""
        text, lengths = [np.empty(0, np.uint8)], [np.zeros(1, np.int64)]
        start = 0
        for captions in shards:
            first, last = np.searchsorted(numbers, [start, start + len(captions)])
            local = numbers[first:last] - start
            begins, ends = captions.ends[local], captions.ends[local + 1]
            text += [captions.text[b:e] for b, e in zip(begins, ends, strict=True)]
            lengths.append(ends - begins)
            start += len(captions)
        return cls(numbers, np.concatenate(text), np.cumsum(np.concatenate(lengths)))

    def of(self, number: int) -> str:
        place = int(np.searchsorted(self.numbers, number))
        return self.text[self.ends[place] : self.ends[place + 1]].tobytes().decode("utf-8")


def read_captions(shard: ShardRef, caption_key: str | None = None) -> Captions:
    """The captions of each sample, all that it has, in input order; no image is decoded.

    Of a table of paths, and of embeddings, the rows alone are read. A shard that is cut short has
    the captions of what comes before. Raises `InputError` if it cannot be read for a reason that
    is not in its bytes.
    """
    texts: list[str] = []
    try:
        for text in read_texts(shard, caption_key):
            texts.append(text)
    except ShardError as error:
        check_is_of_the_bytes(shard, error)
        return Captions.of(texts, str(error))
    return Captions.of(texts)


def check_is_of_the_bytes(shard: ShardRef, error: ShardError) -> None:
    """Raise `InputError` if a shard cannot be read because of its store, not of its bytes."""
    cause = error.__cause__
    if isinstance(cause, OSError) and not isinstance(cause, gzip.BadGzipFile):
        raise InputError(f"{shard.url} {error}") from error


def read_texts(shard: ShardRef, caption_key: CaptionKeys = None) -> Iterator[str]:
    """Read the captions of a shard one after the other. Raises `ShardError` as its reader does."""
    if shard.layout in LAYOUTS:
        names = caption_keys(caption_key) or SOURCES["text"]
        table = read_table(shard.url, names, shard.rows)
        column = facts_of(table, shard, {"text": names}).column("text")
        yield from (text for text in column.to_pylist() if text and text.strip())
        return
    wanted = () if has_rows(shard) else None  # files of images need not be read
    for sample in read_samples(shard, caption_key, wanted=wanted):
        yield from (caption.text for caption in sample.captions if caption.text is not None)
