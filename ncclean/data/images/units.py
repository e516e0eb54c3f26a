"""Tables and folders of images to units: rows of a file, or files of a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ncclean import stores
from ncclean.data.images import karpathy, npc
from ncclean.data.images.class_folders import class_units
from ncclean.data.images.columns import PATH_COLUMNS
from ncclean.data.images.listing import (
    entries_of,
    has_captioned_images,
    has_image_files,
    is_image_name,
    subfolders,
    unread_image,
)
from ncclean.data.images.rows import TABLE, columns_of, text_units
from ncclean.data.images.table_columns import METADATA, TABLES, holds_images, is_unreadable
from ncclean.data.images.text_rows import LINES, SEPARATED
from ncclean.data.lance_table import ENDING, is_lance, lance_pieces
from ncclean.data.options import SourceOptions
from ncclean.data.parquet_bounds import check_rows
from ncclean.data.parquet_table import table_rows
from ncclean.data.sample_groups import HEIC_NOT_READ
from ncclean.data.shards import (
    ShardRef,
    check_named_once,
    distinct_names,
    expand,
    places,
    sizes_and_versions,
)
from ncclean.errors import InputError, ShardError

FOLDER = "folder"
KARPATHY = "karpathy"  # of some splits, `karpathy:train:restval`
NPC = "npc"
LANCE = "lance"
CLASSES = "classes"  # and the template of their captions, `classes:a photo of a {}`
# As large as the shards of a tar: what a kill costs, and how many embeddings are held at a time.
_UNIT_ROWS = 10_000
_QUESTIONS = 16  # files that are looked into at a time


@dataclass(frozen=True)
class _Source:
    """A table, or a folder with loose files; `root` is the folder that images lie below."""

    layout: str
    url: str
    root: str


def is_table(shard: ShardRef) -> bool:
    """Whether a unit is of a file that names or holds its images."""
    return shard.layout.partition(":")[0] in (TABLE, KARPATHY, NPC, LANCE, CLASSES)


def has_images(place: str, image_key: str | None = None) -> bool:
    """Whether a file or a folder is a source of images that are not in tars."""
    return next(_sources(place, SourceOptions(image_key=image_key)), None) is not None


def check_formats(place: str) -> None:
    """Raise `InputError` for a text table without a column of images, or for a single image.

    And for a folder that has pictures, all of formats that are not read.
    """
    if is_image_name(place) and not os.path.isdir(place):
        raise InputError(
            f"{place} is one image: name the folder that it lies in, or a table of images"
        )
    if place.endswith((*SEPARATED, *LINES)):
        there = ", ".join(map(str, columns_of(place))) or "none"
        raise InputError(
            f"{place} names no images; the columns of its first rows are: {there}. One of paths is "
            f"called {', '.join(PATH_COLUMNS[:3])}, ..."
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
    """Units of the sources in the order given, folders sorted.

    A source is a table (csv, tsv, jsonl, Parquet), Karpathy's json, a folder of tables, one of
    Hugging Face's imagefolder layout, or one with loose images and their captions beside them,
    folders in it included; a glob, a brace range, `@list.txt` or a URL of these. `options` say
    where the images of a table lie, and which splits are read. Raises `InputError` for one
    without images, or given twice.
    """
    options = options or SourceOptions()
    root, image_key = options.image_root, options.image_key
    if root is not None and not (stores.is_url(root) or os.path.isdir(root)):
        raise InputError(f"--image-root: the folder {root} does not exist")
    if options.class_template is not None:
        folders = [one.rstrip("/") for source in sources for one in expand(source, places)]
        return class_units(folders, options.class_template, CLASSES, _UNIT_ROWS)
    resolved: list[_Source] = []
    for source in sources:
        for place in expand(source, places):
            here = list(_sources(place, options))
            if not here:
                check_formats(place)
                raise InputError(
                    f"{place} holds no images: neither tables (csv, tsv, jsonl, Parquet) with "
                    f"images or their paths ({', '.join(PATH_COLUMNS[:3])}), nor image files"
                )
            resolved += here
    if image_key is not None:
        for one in resolved:
            if one.layout in (KARPATHY, NPC):
                raise InputError(f"--image-key: {one.url} names one picture for each sample")
    if options.split:
        resolved = _of_splits(resolved, options.split)
    urls = [source.url for source in resolved]
    check_named_once(urls)
    names = distinct_names(
        [_named_after(url) for url in urls], (*TABLES, karpathy.ENDING, npc.ENDING, ENDING)
    )
    with ThreadPoolExecutor(_QUESTIONS) as pool:
        # Folders have been listed by this thread; what is in a table is still to be asked.
        units = [
            _folder_units(source, name, image_key)
            if source.layout == FOLDER
            else pool.submit(_table_units, source, name, options)
            for source, name in zip(resolved, names, strict=True)
        ]
        return [
            unit
            for several in units
            for unit in (several.result() if isinstance(several, Future) else several)
        ]


def _sources(place: str, options: SourceOptions) -> Iterator[_Source]:
    place, root = place.rstrip("/"), options.image_root
    if place.endswith(karpathy.ENDING) and not os.path.isdir(place):
        karpathy.check_karpathy(place)
        yield _Source(KARPATHY, place, root or os.path.dirname(place) or ".")
        return
    if is_lance(place) or place.endswith(TABLES):
        is_one = holds_images(place, options.image_key)
        if is_one or (not is_lance(place) and is_unreadable(place)):
            layout = LANCE if is_lance(place) else TABLE
            yield _Source(layout, place, root or os.path.dirname(place) or ".")
        return
    is_file = stores.is_url(place) and stores.location(place).suffix
    if is_file and not place.endswith(npc.ENDING):
        return
    if files := npc.caption_files(place):
        yield from (_Source(NPC, file, root or npc.images_of(file)) for file in files)
        return
    yield from _in_folder(place, options)


def _of_splits(sources: Sequence[_Source], splits: Sequence[str]) -> list[_Source]:
    """The sources that hold some of the splits. Raises `InputError` for one that states none."""
    for source in sources:
        if source.layout not in (KARPATHY, NPC):
            raise InputError(
                "--split is for Karpathy's dataset_*.json and NPC's layout, which state splits; "
                f"{source.url} does not"
            )
    chosen = [one for one in sources if one.layout == KARPATHY or npc.split_of(one.url) in splits]
    if sources and not chosen:
        there = ", ".join(sorted({str(npc.split_of(one.url)) for one in sources}))
        raise InputError(f"{sources[0].url}: there is no split {splits[0]}; there is {there}")
    return chosen


def _in_folder(place: str, options: SourceOptions) -> Iterator[_Source]:
    """Yield the sources in a folder and its subfolders; a table stands for the images below it."""
    waiting, root = [place], options.image_root
    while waiting:
        folder = waiting.pop()
        if tables := _tables_in(folder, options.image_key):
            for url in tables:
                yield _Source(TABLE, url, root or folder)
            continue
        try:
            if has_image_files(folder):
                yield _Source(FOLDER, folder, root or folder)
            waiting += reversed(subfolders(folder))
        except ShardError:
            continue


def _tables_in(folder: str, image_key: str | None) -> list[str]:
    """The tables of a folder that name or hold images, all of them or those called metadata."""
    names = [entry.name for entry in stores.listing(folder)]
    tables = [f"{folder}/{name}" for name in names if name.endswith(TABLES)]
    metadata = [url for url in tables if url.rpartition("/")[2] in METADATA][:1]
    # One that can be read tells for all: a corpus has thousands, and some of them are broken.
    first = next((url for url in metadata or tables if holds_images(url, image_key)), None)
    if first is None:
        # Without it, the images of the folder would be without captions.
        are_needed = _lacks_captions(folder)
        may_be_needed = metadata or (tables if are_needed else ())
        first = next((url for url in may_be_needed if is_unreadable(url)), None)
        if first is None and metadata and are_needed:
            check_formats(metadata[0])
    ending = first[first.rindex(".") :] if first is not None else ""
    return [url for url in metadata or tables if first is not None and url.endswith(ending)]


def _lacks_captions(folder: str) -> bool:
    """Whether a folder has images and no captions beside them."""
    try:
        return has_image_files(folder) and not has_captioned_images(folder)
    except ShardError:
        return False


def _named_after(url: str) -> str:
    """An imagefolder's metadata has the name of its folder."""
    folder, _, name = url.rpartition("/")
    return folder if name in METADATA and folder else url


def _table_units(source: _Source, name: str, options: SourceOptions) -> list[ShardRef]:
    if source.layout == LANCE:
        return _lance_units(source, name)
    size, version = sizes_and_versions([source.url])[0]
    layout = source.layout
    try:
        if layout == NPC:
            version = npc.version_of(source.url)
            cuts = npc.npc_units(source.url, _UNIT_ROWS, version)
        elif layout == KARPATHY:
            # Other layouts have none. The rows of other splits are another version of the unit.
            named = [split for split in karpathy.SPLITS if split in options.split]
            layout, version = ":".join([layout, *named]), ":".join([version, *named])
            cuts = karpathy.karpathy_units(source.url, options.split, _UNIT_ROWS)
        else:
            cuts = _cuts(source.url, size, options.image_key)
    except ShardError:  # said when it is read
        return [ShardRef(name, source.url, size, version, layout, (source.root,))]
    total = max(cuts[-1][1], 1) if cuts else 1
    return [
        ShardRef(
            name if len(cuts) < 2 else f"{name}-{first:0{len(str(total))}d}",
            source.url,
            round(size * (last - first) / total),
            version,
            layout,
            (source.root,),
            (first, last),
            offset,
        )
        for first, last, offset in cuts
    ] or [ShardRef(name, source.url, size, version, layout, (source.root,), (0, 0))]


def _lance_units(source: _Source, name: str) -> list[ShardRef]:
    pieces = lance_pieces(source.url, _UNIT_ROWS)
    digits = len(str(pieces[-1].last)) if pieces else 0
    names = [f"{name}-{piece.first:0{digits}d}" if len(pieces) > 1 else name for piece in pieces]
    return [
        ShardRef(unit, source.url, size, version, LANCE, (source.root,), (first, last))
        for unit, (first, last, size, version) in zip(names, pieces, strict=True)
    ]


def _cuts(url: str, size: int, image_key: str | None) -> list[tuple[int, int, int]]:
    """First row, row after the last, byte offset of each unit of a table."""
    if not url.endswith(".parquet"):
        return text_units(url, _UNIT_ROWS, image_key)
    groups, _ = table_rows(url)
    check_rows(sum(groups), size)
    cuts, begin, end = [], 0, 0
    for number, rows in enumerate(groups):
        end += rows
        if end - begin >= _UNIT_ROWS or (number == len(groups) - 1 and end > begin):
            cuts.append((begin, end, 0))
            begin = end
    return cuts


def _folder_units(source: _Source, name: str, image_key: str | None) -> list[ShardRef]:
    """Units of as many keys; a file more in one of them leaves the others as they are."""
    units: list[ShardRef] = []
    entries = entries_of(source.url, image_key=image_key)
    by_key = itertools.groupby(entries, key=lambda entry: entry.key)
    while chunk := list(itertools.islice(((k, list(g)) for k, g in by_key), _UNIT_ROWS)):
        files = [entry for _, entries in chunk for entry in entries]
        facts = "".join(f"{file.name}\0{file.size}\0{file.version}\0" for file in files)
        digest = hashlib.blake2b(facts.encode(errors="replace"), digest_size=16)
        units.append(
            ShardRef(
                f"{name}-{len(units):05d}",
                source.url,
                sum(file.size for file in files),
                digest.hexdigest(),
                FOLDER,
                (source.root,),
                (0, len(chunk)),
                span=(chunk[0][0], chunk[-1][0]),
            )
        )
    return units if len(units) > 1 else [dataclasses.replace(unit, name=name) for unit in units]
