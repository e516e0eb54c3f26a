"""Folders and files of embeddings to an ordered list of shards, in any layout of `registry.py`.

`ShardRef.url` is the Parquet file with a row for each pair, `files` are the vectors beside it.
Large files are several shards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ncclean.data.embeddings.layout import EmbeddingLayout, Keys, ShardFiles
from ncclean.data.embeddings.registry import LAYOUTS
from ncclean.data.lance_table import ENDING
from ncclean.data.parquet_table import table_rows
from ncclean.data.shards import (
    ShardRef,
    check_named_once,
    distinct_names,
    expand,
    places,
    sizes_and_versions,
)
from ncclean.data.source import Source
from ncclean.errors import InputError, ShardError

# Names of the image's and the caption's vectors that are taken without being told.
_KNOWN_KEYS = (
    ("l14_img", "l14_txt"),
    ("b32_img", "b32_txt"),
    ("image_embedding", "text_embedding"),
    ("img_emb", "text_emb"),
    ("image_emb", "text_emb"),
    ("image", "text"),
)
# A file of more rows is cut into shards of about this many, which bounds memory and what a crash
# costs.
_SHARD_ROWS = 50_000
_QUESTIONS = 32  # asked at a time about the files of a corpus


def layout_of(source: Source) -> EmbeddingLayout | None:
    """Detect the layout of a folder or file of embeddings; None if it holds none.

    Raises `InputError` if a store does not answer.
    """
    return next((layout for layout in LAYOUTS.values() if layout.matches(source)), None)


def resolve_embeddings(sources: Iterable[str]) -> list[ShardRef]:
    """Expand folders, globs and files of embeddings into shards, in the order given.

    A source is a folder of one of the layouts or a file, a glob, a brace range, `@list.txt` or a
    URL of these. Raises `InputError` for a source without embeddings, or one given twice.
    """
    locations = [place for source in sources for place in expand(source, places)]
    with ThreadPoolExecutor(_QUESTIONS) as pool:  # each may be a request to a store
        files = [one for several in pool.map(_files, locations) for one in several]
    if not files:
        raise InputError("name at least one file or folder of embeddings")
    tables = [one.table for one in files]
    check_named_once(tables)
    names = distinct_names(tables, (".parquet", ENDING))
    with ThreadPoolExecutor(_QUESTIONS) as pool:
        shards = list(pool.map(_shards, files, names))
    return [shard for several in shards for shard in several]


def vector_keys(shards: Sequence[ShardRef], keys: Keys | None) -> Keys | None:
    """The names of image and caption vectors: those given, else well-known ones that are there.

    None where the vectors have no names. Raises `InputError` if `keys` are given but nothing has
    names, and if they are needed to tell which vectors are meant.
    """
    named = [shard for shard in shards if LAYOUTS[shard.layout].keys_of is not None]
    if keys is not None:
        if not named:
            kinds = [layout.keys_of for layout in LAYOUTS.values() if layout.keys_of is not None]
            raise InputError(f"--embedding-keys is for embeddings in {' and '.join(kinds)} files")
        candidates: Sequence[Keys] = (keys,)
    else:
        candidates = _KNOWN_KEYS
    return _keys_there(named, candidates) if named else None


def _files(url: str) -> list[ShardFiles]:
    source = Source(url)
    layout = layout_of(source)
    if layout is None:
        files = ", nor ".join(layout.files for layout in LAYOUTS.values())
        raise InputError(f"{source.url} holds no embeddings: neither {files}")
    return layout.shards(source)


def _shards(files: ShardFiles, name: str) -> list[ShardRef]:
    """One shard, or several if there are many rows."""
    shard = ShardRef(name, files.table, 0, "", files.layout, files.vectors)
    try:
        facts = sizes_and_versions((files.table, *files.vectors))
    except (OSError, InputError):  # said when it is read
        return [shard]
    size, version = sum(size for size, _ in facts), " ".join(version for _, version in facts)
    shard = dataclasses.replace(shard, size=size, version=version)
    try:
        ends = _ends(files)
    except ShardError:
        return [shard]
    if len(ends) == 1:
        return [dataclasses.replace(shard, rows=(0, ends[0]))]
    total = ends[-1]
    return [
        dataclasses.replace(
            shard,
            name=f"{name}-{first:0{len(str(total))}d}",
            size=round(size * (last - first) / total),
            rows=(first, last),
        )
        for first, last in zip([0, *ends[:-1]], ends, strict=True)
    ]


def _ends(files: ShardFiles) -> list[int]:
    """The row after the last of each shard. Raises `ShardError` if the file cannot be read."""
    row_groups, _ = table_rows(files.table)
    if sum(row_groups) <= 1.5 * _SHARD_ROWS:
        return [sum(row_groups)]
    return LAYOUTS[files.layout].cut(row_groups, _SHARD_ROWS)


def _keys_there(shards: Sequence[ShardRef], candidates: Sequence[Keys]) -> Keys:
    """The first candidates that the first readable shard has."""
    failure: ShardError | None = None
    for shard in shards:
        where = shard.files[0] if shard.files else shard.url
        try:
            there = LAYOUTS[shard.layout].vector_names(shard)
        except ShardError as error:
            failure = failure or error
            continue
        for keys in candidates:
            if set(keys) <= set(there):
                return keys
        raise InputError(
            f"which vectors of {where} are of images, and which of captions? Name both with "
            f"--embedding-keys IMG,TEXT; there are {', '.join(there) or 'none'}"
        )
    raise InputError(str(failure))
