"""Resolve sources to shards; detect the layout from the content."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ncclean.base import stores
from ncclean.data.embeddings.units import LAYOUTS, find_embeddings, resolve_embeddings
from ncclean.data.images.columns import IMAGE_COLUMNS, PATH_COLUMNS
from ncclean.data.images.resolve import check_formats, has_images, resolve_images
from ncclean.data.lance_table import is_lance
from ncclean.data.nested_fields import head_of
from ncclean.data.options import SourceFormat, SourceOptions
from ncclean.data.parquet_table import table_rows, vector_columns
from ncclean.data.shards import ShardRef, expand, is_tar, places, resolve_shards, tars_in
from ncclean.errors import InputError, ShardError

_FILES_LOOKED_AT = 100  # among readable ones

_HOLDS: dict[SourceFormat, str] = {
    "webdataset": "tars",
    "images": "tables or files of images",
    "embeddings": "embeddings",
}


def resolve_sources(
    sources: Sequence[str], layout: SourceFormat = "auto", options: SourceOptions | None = None
) -> list[ShardRef]:
    """Expand sources, of images or of embeddings, into shards in the order given.

    See `resolve_shards`, `resolve_images` and `resolve_embeddings`. Raises `InputError` for sources
    that do not exist, hold no pairs, or mix layouts.
    """
    with stores.listings_kept():
        return _resolved(sources, layout, options or SourceOptions())


def _resolved(
    sources: Sequence[str], layout: SourceFormat, options: SourceOptions
) -> list[ShardRef]:
    if options.class_template is not None:
        layout = "images"
    if layout == "auto":
        kinds = {_kind(source, options.image_key): source for source in sources}
        if len(kinds) > 1:
            (first, one), (second, other) = list(kinds.items())[:2]
            raise InputError(
                f"{one} holds {_HOLDS[first]} and {other} {_HOLDS[second]}: score them separately"
            )
        layout = next(iter(kinds), "webdataset")
    if layout == "embeddings":
        return resolve_embeddings(sources)
    shards = resolve_images(sources, options) if layout == "images" else resolve_shards(sources)
    if options.image_key is None:
        return shards
    return [dataclasses.replace(shard, image_key=options.image_key) for shard in shards]


def resolve_pairs(sources: Sequence[str], options: SourceOptions | None = None) -> list[ShardRef]:
    """Expand sources of images into shards. Raises `InputError` for embeddings."""
    shards = resolve_sources(sources, "auto", options)
    if are_embeddings(shards):
        raise InputError(f"{shards[0].url} holds embeddings, but this command needs images")
    return shards


def are_embeddings(shards: Sequence[ShardRef]) -> bool:
    """Check whether shards hold embeddings instead of images."""
    return any(shard.layout in LAYOUTS for shard in shards)


def _kind(source: str, image_key: str | None) -> SourceFormat:
    """Detect the kind from the first file or folder: by its name, else by its content."""
    if is_tar(source):  # a pattern of a million shards is listed once
        return "webdataset"
    first = next(iter(expand(source, places)), "")
    if is_tar(first) or tars_in(first):
        return "webdataset"
    has_vectors = bool(find_embeddings(first))
    if _has_embeddings(first):
        return "embeddings"
    if not has_vectors:
        # The metadata of embeddings name images: from above they look like tables of paths.
        _check_below(first, _has_embeddings)
    if has_images(first, image_key):
        return "images"
    try:
        if has_vectors:
            _check_vectors(first)
            return "embeddings"
        check_formats(first)
    except InputError as error:
        if image_key is None:
            raise
        raise InputError(
            f"there is no column {head_of(image_key)} (--image-key): {error}"
        ) from error
    _check_below(first, tars_in)
    return "webdataset"


def _check_below(place: str, is_source: Callable[[str], object]) -> None:
    """Raise `InputError`, naming the subfolder, if a folder below is the source instead."""
    folders = [entry.name for entry in stores.listing(place) if entry.is_folder]
    for name in folders[:_FILES_LOOKED_AT]:
        inner = f"{place.rstrip('/')}/{name}"
        if is_source(inner):
            raise InputError(f"{place} holds no shards itself: name {inner}, which does")


def _has_embeddings(place: str) -> bool:
    """Check whether a place holds embeddings, and cannot be a table of images."""
    return any(not one.layout.may_be_images for one in find_embeddings(place))


def _check_vectors(place: str) -> None:
    """Raise `InputError` for Parquet files that are all unreadable, or hold no vectors."""
    files = [place]
    if not place.endswith(".parquet") and not is_lance(place):
        names = (entry.name for entry in stores.listing(place))
        files = [f"{place.rstrip('/')}/{name}" for name in names if name.endswith(".parquet")]
    failure: InputError | None = None
    for file in files[:_FILES_LOOKED_AT]:
        try:
            kinds = table_rows(file)[1]
        except ShardError as error:
            failure = failure or InputError(str(error))
            continue
        if len(vector_columns(kinds)) >= 2:
            return
        failure = InputError(
            f"{file} holds neither images, nor their paths, nor two columns of vectors; its "
            f"columns are {', '.join(kinds.names)}. An image column is a struct of bytes and path, "
            f"or called {IMAGE_COLUMNS[0]}, {IMAGE_COLUMNS[1]}, ..., or "
            "named by --image-key; one of paths "
            f"{', '.join(PATH_COLUMNS[:3])}, ...; DataComp's vectors are in an .npz beside it, "
            "which is missing"
        )
    if failure is not None:
        raise failure
