"""Folders and files of embeddings to an ordered list of shards.

Three layouts hold the embeddings of pairs:

- `clip-retrieval`: `img_emb/img_emb_<i>.npy`, `text_emb/text_emb_<i>.npy` and
  `metadata/metadata_<i>.parquet`, as clip-retrieval and `ncclean score --embeddings` write them;
- `datacomp`: `<name>.parquet` with metadata beside `<name>.npz` with matrices such as `l14_img`;
- `vectors`: Parquet files with two columns of vectors.

`ShardRef.url` is the Parquet file, `files` are the matrices. Large files are several shards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from upath import UPath

from ncclean import stores
from ncclean.data.embeddings.vectors import npz_shapes, table_rows, vector_columns
from ncclean.data.shards import (
    ShardRef,
    check_named_once,
    distinct_names,
    expand,
    places,
    sizes_and_versions,
)
from ncclean.errors import InputError, ShardError

LAYOUTS = ("clip-retrieval", "datacomp", "vectors")
# Names of the image's and the caption's vectors that are taken without being told.
_KNOWN_KEYS = (
    ("l14_img", "l14_txt"),
    ("b32_img", "b32_txt"),
    ("image_embedding", "text_embedding"),
    ("img_emb", "text_emb"),
    ("image_emb", "text_emb"),
    ("image", "text"),
)
_IMAGES, _TEXTS, _METADATA = "img_emb", "text_emb", "metadata"
# A file of more rows is cut into shards of about this many, which bounds memory and what a crash
# costs.
_SHARD_ROWS = 50_000
_QUESTIONS = 32  # asked at a time about the files of a corpus


@dataclass(frozen=True)
class _Files:
    """The files of a shard before they are looked into."""

    layout: str
    table: str
    matrices: tuple[str, ...] = ()


def layout_of(source: str) -> str | None:
    """Which layout of embeddings a folder or a file has; None if it is none of them.

    Raises `InputError` if a store does not answer.
    """
    if source.endswith(".npz"):
        return "datacomp"
    place = stores.location(source)
    if source.endswith(".parquet"):
        matrices = stores.location(source.removesuffix(".parquet") + ".npz")
        return "datacomp" if stores.ask("read", matrices, matrices.exists) else "vectors"
    if stores.is_url(source) and place.suffix:
        return None
    names = _names(place)
    if _METADATA in names and names & {_IMAGES, _TEXTS}:
        return "clip-retrieval"
    if any(name.endswith(".npz") for name in names):
        return "datacomp"
    if any(name.endswith(".parquet") for name in names):
        return "vectors"
    return None


def resolve_embeddings(sources: Iterable[str]) -> list[ShardRef]:
    """Shards of the sources in the order given.

    A source is a folder of one of the layouts or a file, a glob, a brace range, `@list.txt` or a
    URL of these. Raises `InputError` for a source without embeddings, or one given twice.
    """
    locations = [place for source in sources for place in expand(source, places)]
    with ThreadPoolExecutor(_QUESTIONS) as pool:  # each may be a request to a store
        matrices = [files for several in pool.map(_files, locations) for files in several]
    if not matrices:
        raise InputError("name at least one file or folder of embeddings")
    tables = [files.table for files in matrices]
    check_named_once(tables)
    names = distinct_names(tables, (".parquet",))
    with ThreadPoolExecutor(_QUESTIONS) as pool:
        shards = list(pool.map(_shards, matrices, names))
    return [shard for several in shards for shard in several]


def vector_keys(shards: Sequence[ShardRef], keys: tuple[str, str] | None) -> tuple[str, str] | None:
    """The names of image and caption vectors: those given, else well-known ones that are there.

    None for clip-retrieval's layout, whose files have no names. Raises `InputError` if there is
    nothing to be named, or if it takes `given` to tell which vectors are meant.
    """
    named = [shard for shard in shards if shard.layout in ("datacomp", "vectors")]
    if keys is not None:
        if not named:
            raise InputError("--embedding-keys is for embeddings in .npz and Parquet files")
        candidates: Sequence[tuple[str, str]] = (keys,)
    else:
        candidates = _KNOWN_KEYS
    return _keys_there(named, candidates) if named else None


def _files(source: str) -> list[_Files]:
    source = source.rstrip("/")
    layout = layout_of(source)
    place = stores.location(source)
    if layout == "clip-retrieval":
        return _numbered(place)
    if layout == "datacomp":
        if source.endswith((".npz", ".parquet")):
            stem = source.rpartition(".")[0]
            return [_Files(layout, f"{stem}.parquet", (f"{stem}.npz",))]
        stems = sorted(
            {
                name[: -len(end)]
                for name in _names(place)
                for end in (".npz", ".parquet")
                if name.endswith(end)
            }
        )
        return [
            _Files(layout, str(place / f"{stem}.parquet"), (str(place / f"{stem}.npz"),))
            for stem in stems
        ]
    if layout == "vectors":
        if source.endswith(".parquet"):
            return [_Files(layout, source)]
        names = _names(place)
        return [
            _Files(layout, str(place / name)) for name in sorted(names) if name.endswith(".parquet")
        ]
    raise InputError(
        f"{source} holds no embeddings: neither {_IMAGES}, {_TEXTS} and {_METADATA} as "
        "clip-retrieval writes them, nor .npz files beside Parquet files, nor Parquet files"
    )


def _numbered(folder: UPath) -> list[_Files]:
    """clip-retrieval's files by their numbers."""
    listed = {
        name: _by_number(folder / name, name, ending)
        for name, ending in ((_METADATA, "parquet"), (_IMAGES, "npy"), (_TEXTS, "npy"))
    }
    for name, files in listed.items():
        if not files:
            hint = " (clip-retrieval writes it with --enable_text)" if name == _TEXTS else ""
            raise InputError(f"{folder / name} holds no {name}_<i> files{hint}")
    # What only one of them has is a shard that cannot be read: said when it is its turn.
    return [
        _Files(
            "clip-retrieval",
            listed[_METADATA].get(number)
            or str(folder / _METADATA / f"{_METADATA}_{number}.parquet"),
            tuple(
                listed[name].get(number) or str(folder / name / f"{name}_{number}.npy")
                for name in (_IMAGES, _TEXTS)
            ),
        )
        for number in sorted(set().union(*listed.values()))
    ]


def _by_number(folder: UPath, name: str, ending: str) -> dict[int, str]:
    pattern = re.compile(rf"{name}_(\d+)\.{ending}$")
    return {
        int(match[1]): str(folder / file)
        for file in sorted(_names(folder))
        if (match := pattern.match(file))
    }


def _names(folder: UPath) -> set[str]:
    return {entry.name for entry in stores.listing(folder)}


def _shards(files: _Files, name: str) -> list[ShardRef]:
    """The shards of a file and its matrices: one, or several if there are many rows."""
    urls = (files.table, *files.matrices)
    try:
        facts = sizes_and_versions(urls)
    except (OSError, InputError):  # said when it is read
        return [ShardRef(name, files.table, 0, "", files.layout, files.matrices)]
    size, version = sum(size for size, _ in facts), " ".join(version for _, version in facts)
    pieces = _pieces(files)
    if len(pieces) < 2:
        rows = pieces[0] if pieces else None
        return [ShardRef(name, files.table, size, version, files.layout, files.matrices, rows)]
    total = pieces[-1][1]
    return [
        ShardRef(
            f"{name}-{first:0{len(str(total))}d}",
            files.table,
            round(size * (last - first) / total),
            version,
            files.layout,
            files.matrices,
            (first, last),
        )
        for first, last in pieces
    ]


def _pieces(files: _Files) -> list[tuple[int, int]]:
    """From which row to which; none if the file cannot be read."""
    try:
        groups, _ = table_rows(files.table)
    except ShardError:
        return []
    rows = sum(groups)
    if rows <= 1.5 * _SHARD_ROWS or files.layout == "datacomp":  # an archive is read as a whole
        return [(0, rows)]
    if files.layout == "clip-retrieval":
        return _ranges([*range(_SHARD_ROWS, rows, _SHARD_ROWS), rows])
    ends, end, begin = [], 0, 0
    for count in groups:
        end += count
        if end - begin >= _SHARD_ROWS or end == rows:
            ends.append(end)
            begin = end
    return _ranges(ends)


def _ranges(ends: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _keys_there(
    shards: Sequence[ShardRef], candidates: Sequence[tuple[str, str]]
) -> tuple[str, str]:
    """The first candidates that the first readable shard has."""
    failure: ShardError | None = None
    for shard in shards:
        where = shard.files[0] if shard.files else shard.url
        try:
            there = _matrix_names(where) if shard.files else list(vector_columns(_columns(where)))
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


def _matrix_names(url: str) -> list[str]:
    return [name for name, shape in npz_shapes(url).items() if len(shape) == 2]


def _columns(url: str) -> pa.Schema:
    return table_rows(url)[1]
