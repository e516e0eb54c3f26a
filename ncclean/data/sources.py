"""Whatever holds pairs to an ordered list of shards: the content tells which layout it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ncclean.config import SourceFormat
from ncclean.data.embeddings.units import LAYOUTS, layout_of, resolve_embeddings
from ncclean.data.shards import SUFFIXES, ShardRef, expand, places, resolve_shards
from ncclean.errors import InputError


def resolve_sources(sources: Sequence[str], layout: SourceFormat = "auto") -> list[ShardRef]:
    """The shards of sources in the order given; see `resolve_shards` and `resolve_embeddings`.

    Raises `InputError` for sources that do not exist, that hold no pairs, or that are partly tars
    and partly embeddings.
    """
    if layout == "auto":
        kinds = {source: _kind(source) for source in sources}
        if len(set(kinds.values())) > 1:
            tars = next(source for source, kind in kinds.items() if kind == "webdataset")
            others = next(source for source, kind in kinds.items() if kind == "embeddings")
            raise InputError(f"{tars} holds images and {others} embeddings: score them apart")
        layout = next(iter(kinds.values()), "webdataset")
    return resolve_embeddings(sources) if layout == "embeddings" else resolve_shards(sources)


def are_embeddings(shards: Sequence[ShardRef]) -> bool:
    """Whether shards hold vectors in place of images."""
    return any(shard.layout in LAYOUTS for shard in shards)


def _kind(source: str) -> Literal["webdataset", "embeddings"]:
    """By the first file or folder that is meant: its name where that tells, else what is there."""
    if source.endswith(SUFFIXES):  # a pattern of a million shards is listed once
        return "webdataset"
    first = next(iter(expand(source, places)), "")
    if first.endswith(SUFFIXES) or layout_of(first) is None:
        return "webdataset"
    return "embeddings"
