"""Resolve sources of images outside tars to units: rows of a file, or files of a folder."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

from ncclean.base import stores
from ncclean.data.images.columns import PATH_COLUMNS
from ncclean.data.images.folders import is_image_name, subfolders, unread_image
from ncclean.data.images.json_layouts import JSON
from ncclean.data.images.json_list import first_entries
from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.registry import LAYOUTS, table_at
from ncclean.data.images.tables import METADATA, TEXTS, TableLayout
from ncclean.data.layout import Source, SourceFile, units_of
from ncclean.data.options import SourceOptions
from ncclean.data.sample_groups import HEIC_NOT_READ
from ncclean.data.shards import ShardRef, expand, places
from ncclean.errors import InputError, ShardError

_QUESTIONS = 16  # files inspected in parallel


def has_images(place: str, image_key: str | None = None) -> bool:
    """Check whether a file or a folder is a source of images outside tars."""
    first_entries.cache_clear()  # files may have changed since
    return next(_files_at(place, SourceOptions(image_key=image_key)), None) is not None


def check_formats(place: str) -> None:
    """Raise `InputError` for a table or json without images, or for a single image.

    Also for a folder whose images are all of unsupported formats.
    """
    if is_image_name(place) and not os.path.isdir(place):
        raise InputError(
            f"{place} is one image: name the folder that it lies in, or a table of images"
        )
    if place.endswith(TEXTS):
        layout = table_at(place)
        if isinstance(layout, TableLayout):
            raise InputError(layout.lacks_images(place))
    if place.endswith(JSON):
        raise InputError(
            f"{place} is no json that is read: neither Karpathy's nor COCO's captions, nor a list "
            f"of objects with an image or its path ({', '.join(PATH_COLUMNS[:3])}, ...)"
        )
    waiting = [place.rstrip("/")]
    while waiting:
        folder = waiting.pop()
        try:
            name = unread_image(folder)
            waiting += reversed(subfolders(folder))
        except ShardError:
            continue
        if name is not None:
            raise InputError(f"{place} holds no image that is read: {name} is {HEIC_NOT_READ}")


def resolve_images(sources: Iterable[str], options: SourceOptions | None = None) -> list[ShardRef]:
    """Resolve sources to shards of images in the order given, folders sorted.

    A source is a file or a folder of one of the layouts of `registry.py`, including subfolders; a
    glob, a brace range, `@list.txt` or a URL of these. `options` say where a table's images are,
    and which splits to read. Raises `InputError` for a source without images, or given twice.
    """
    options = options or SourceOptions()
    first_entries.cache_clear()  # files may have changed since
    root = options.image_root
    if root is not None and not (stores.is_url(root) or os.path.isdir(root)):
        raise InputError(f"--image-root: the folder {root} does not exist")
    files: list[SourceFile] = []
    for source in sources:
        for place in expand(source, places):
            here = list(_files_at(place, options))
            if not here:
                check_formats(place)
                raise InputError(
                    f"{place} holds no images: neither tables (csv, tsv, jsonl, Parquet) with "
                    f"images or their paths ({', '.join(PATH_COLUMNS[:3])}), nor image files"
                )
            files += here
    if options.image_key is not None:
        for one in files:
            if not one.layout.takes_image_key:
                raise InputError(f"--image-key: {one.url} names one picture for each sample")
    if options.split:
        files = _of_splits(files, options.split)
    return units_of(files, [_named_after(one.url) for one in files], options)


def _files_at(place: str, options: SourceOptions) -> Iterator[SourceFile]:
    """Yield the sources at a file or in a folder; a table covers the images below it."""
    waiting: list[tuple[Source, Sequence[ImageLayout]]] = [(Source(place), LAYOUTS)]
    while waiting:
        source, layouts = waiting.pop()
        try:
            asked = ((layout, layout.files_of(source, options)) for layout in layouts)
            layout, files = next((one for one in asked if one[1]), (None, []))
            if isinstance(layout, TableLayout):
                _check_one_kind(layout, files, source, options)
            yield from files
            if layout is not None:
                layouts = layout.below(layouts)
            if layouts:
                folders = reversed(subfolders(source.url))
                waiting += [(Source(folder), layouts) for folder in folders]
        except ShardError:
            continue


def _check_one_kind(
    layout: TableLayout, files: list[SourceFile], source: Source, options: SourceOptions
) -> None:
    """Raise `InputError` for a folder's tables of several kinds: they may state the same pairs."""
    later = LAYOUTS[LAYOUTS.index(layout) + 1 :]  # those before it have found nothing
    others = (one.files_of(source, options) for one in later if isinstance(one, TableLayout))
    kinds: dict[str, str] = {}
    for file in itertools.chain(files, *others):
        ending = next(one for one in file.layout.endings if file.url.endswith(one))
        kinds.setdefault(ending, file.url)
    if len(kinds) > 1:
        raise InputError(
            f"{source.url} has tables of several kinds, {' and '.join(kinds.values())}, which may "
            f"state the same pairs: name the files of one kind, as {source.below('*')}"
            f"{next(iter(kinds))}"
        )


def _of_splits(files: Sequence[SourceFile], splits: Sequence[str]) -> list[SourceFile]:
    """Return sources that hold some of the splits. Raises `InputError` for one that states none."""
    for one in files:
        if not one.layout.has_splits:
            raise InputError(
                "--split is for layouts that state splits, such as Karpathy's dataset_*.json, "
                f"COCO's captions_*.json and NPC's folders; {one.url} does not"
            )
    chosen = [one for one in files if one.layout.split_of(one.url) in (None, *splits)]
    if files and not chosen:
        splits_there = ", ".join(sorted({str(one.layout.split_of(one.url)) for one in files}))
        raise InputError(f"{files[0].url}: there is no split {splits[0]}; there is {splits_there}")
    return chosen


def _named_after(url: str) -> str:
    """Name an imagefolder's metadata after its folder."""
    folder, _, name = url.rpartition("/")
    return folder if name in METADATA and folder else url
